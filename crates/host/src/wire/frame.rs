//! Messages on a stream of bytes: their length, in four bytes, the highest first, then so many bytes of JSON.

use std::io::{Error, ErrorKind, Result};

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reads one message of so many bytes at most.
///
/// # Errors
/// `InvalidData` where it says that it is longer, and `UnexpectedEof` where it is shorter than it says.
pub async fn read(stream: &mut (impl AsyncRead + Unpin), most: u32) -> Result<Vec<u8>> {
    let length = stream.read_u32().await?;
    if length > most {
        return Err(too_long(length, most));
    }
    // What it says of itself takes no memory before it is there.
    let mut bytes = Vec::new();
    stream.take(length.into()).read_to_end(&mut bytes).await?;
    if bytes.len() < usize::try_from(length).unwrap_or(usize::MAX) {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// The bytes of a message.
///
/// # Errors
/// `InvalidData` where it is too long.
pub fn of(message: &impl Serialize, most: u32) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
    if length > most {
        return Err(too_long(length, most));
    }
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    Ok(bytes)
}

/// Writes the bytes of a message.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

fn too_long(length: u32, most: u32) -> Error {
    Error::new(ErrorKind::InvalidData, format!("a message has {length} bytes, and may have {most} at most"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_is_read_as_it_was_written_and_not_beyond_its_bounds() {
        let bytes = of(&"four", 6).unwrap();
        assert_eq!(bytes, b"\0\0\0\x06\"four\"");
        assert_eq!(read(&mut &bytes[..], 6).await.unwrap(), b"\"four\"");
        assert_eq!(read(&mut &bytes[..], 5).await.unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(of(&"four", 5).unwrap_err().kind(), ErrorKind::InvalidData);
        for short in 0..bytes.len() {
            assert_eq!(read(&mut &bytes[..short], 6).await.unwrap_err().kind(), ErrorKind::UnexpectedEof, "{short}");
        }
    }
}
