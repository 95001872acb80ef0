//! How audio is written: the arguments of the encoder, and the one header that it cannot write to a stream.

use berth_domain::gateway::speech::Format;

/// Samples a second of every format.
const RATE: u32 = 24_000;
/// Bytes of a sample: 16 bits, mono.
const SAMPLE: u16 = 2;
/// Words a minute of a voice at speed 1.
const WORDS: f64 = 175.0;
/// The speeds that espeak-ng takes: it refuses slower ones, and slurs faster ones.
const WORDS_RANGE: std::ops::RangeInclusive<f64> = 80.0..=450.0;
/// Bytes of a WAV header.
pub(super) const WAV_HEADER: usize = 44;

/// How to reach a speed: the voice as far as it goes, a filter for the rest.
#[derive(Debug, PartialEq)]
pub(super) struct Pace {
    /// Words a minute of the voice.
    pub words: f64,
    /// The factor of the filter.
    pub tempo: Option<f64>,
}

/// The pace for a speed.
pub(super) fn pace(speed: f64) -> Pace {
    let wanted = speed * WORDS;
    let words = wanted.clamp(*WORDS_RANGE.start(), *WORDS_RANGE.end());
    Pace { words: words.round(), tempo: (!WORDS_RANGE.contains(&wanted)).then(|| wanted / words) }
}

/// The arguments of ffmpeg: it reads espeak-ng's WAV, whose sizes are false, and writes as soon as it has something.
/// WAV comes as raw samples, since its header needs the length.
pub(super) fn ffmpeg(format: Format, tempo: Option<f64>) -> Vec<String> {
    let reading = "-hide_banner -nostdin -loglevel error -protocol_whitelist pipe -probesize 32 -analyzeduration 0 \
                   -f wav -ignore_length 1 -i pipe:0 -vn -map_metadata -1 -fflags +bitexact -threads 1 \
                   -filter_threads 1";
    let mut words: Vec<String> = reading.split_whitespace().map(str::to_owned).collect();
    if let Some(tempo) = tempo {
        words.extend(["-af".to_owned(), format!("atempo={tempo:.6}")]);
    }
    let writing = format!("-ac 1 -ar {RATE} -flush_packets 1 {} pipe:1", encoder(format));
    words.extend(writing.split_whitespace().map(str::to_owned));
    words
}

const fn encoder(format: Format) -> &'static str {
    match format {
        // No table of contents, which needs the end of the stream, and no tags.
        Format::Mp3 => "-c:a libmp3lame -b:a 64k -write_xing 0 -id3v2_version 0 -f mp3",
        // Pages of a tenth of a second, in microseconds; the default of a second would delay the sound.
        Format::Opus => "-c:a libopus -b:a 32k -page_duration 100000 -f opus",
        Format::Aac => "-c:a aac -b:a 64k -f adts",
        Format::Flac => "-c:a flac -f flac",
        Format::Wav | Format::Pcm => "-c:a pcm_s16le -f s16le",
    }
}

/// The header of a WAV file with so many bytes of samples.
pub(super) fn wav_header(bytes: u32) -> [u8; WAV_HEADER] {
    let mut header = [0; WAV_HEADER];
    header[..4].copy_from_slice(b"RIFF");
    header[4..8].copy_from_slice(&bytes.saturating_add(36).to_le_bytes());
    header[8..16].copy_from_slice(b"WAVEfmt ");
    header[16..20].copy_from_slice(&16_u32.to_le_bytes());
    // Plain samples, one channel.
    header[20..22].copy_from_slice(&1_u16.to_le_bytes());
    header[22..24].copy_from_slice(&1_u16.to_le_bytes());
    header[24..28].copy_from_slice(&RATE.to_le_bytes());
    header[28..32].copy_from_slice(&(RATE * u32::from(SAMPLE)).to_le_bytes());
    header[32..34].copy_from_slice(&SAMPLE.to_le_bytes());
    header[34..36].copy_from_slice(&(SAMPLE * 8).to_le_bytes());
    header[36..40].copy_from_slice(b"data");
    header[40..].copy_from_slice(&bytes.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_makes_what_the_voice_cannot() {
        assert_eq!(pace(1.0), Pace { words: 175.0, tempo: None });
        assert_eq!(pace(80.0 / WORDS), Pace { words: 80.0, tempo: None });
        for (speed, words, tempo) in [(0.25, 80.0, 0.546_875), (4.0, 450.0, 700.0 / 450.0)] {
            let pace = pace(speed);
            assert!((pace.words - words).abs() < 1e-9, "{pace:?}");
            assert!((pace.tempo.unwrap() - tempo).abs() < 1e-9, "{pace:?}");
        }
    }

    #[test]
    fn a_header_tells_sizes() {
        let header = wav_header(1000);
        assert_eq!(header[4..8], 1036_u32.to_le_bytes());
        assert_eq!(header[24..28], 24_000_u32.to_le_bytes());
        assert_eq!(header[28..32], 48_000_u32.to_le_bytes());
        assert_eq!(header[32..36], [2, 0, 16, 0]);
        assert_eq!(header[40..44], 1000_u32.to_le_bytes());
    }
}
