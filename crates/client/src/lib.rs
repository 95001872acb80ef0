//! Typed client of Berth's REST API.
//!
//! A [`Client`] is a base URL and, once signed in, a pair of tokens. An access token that ended is renewed
//! by itself, once, and whoever keeps the tokens is told through [`Client::on_tokens`]. Every call is one
//! request; nothing is retried but reads that could not connect.
//!
//! ```no_run
//! # async fn example() -> Result<(), berth_client::Error> {
//! let client = berth_client::Client::new("http://127.0.0.1:8080")?;
//! client.login("me@example.com", "correct horse battery").await?;
//! let project = client.project("my-org", "default");
//! for vm in project.vms(Default::default()).await?.data {
//!     println!("{} {}", vm.name, vm.status);
//! }
//! # Ok(())
//! # }
//! ```

mod console;
mod disk;
mod error;
mod event;
mod identity;
mod image;
mod transport;
mod vm;

pub use console::Console;
pub use disk::{DataDisk, NewDataDisk, RootDisk};
pub use error::{Error, FieldError, Result};
pub use event::Event;
pub use identity::{Organization, Project, SignUp, SignedUp, Tokens, User};
pub use image::{Image, ImageSource, NewImage, Plan, Quota, QuotaEntry, Region, VmConfig};
pub use transport::{Client, List, Page, Pagination, ProjectClient};
pub use vm::{
    AttachedDisk, ChangeVm, CreateRootDisk, CreateVm, DataDisks, DiskId, NewVmDisk, Operation, Port, RootDiskChoice,
    Ssh, Vm, VmFilter,
};
