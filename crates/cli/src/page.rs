//! Options for pages, for every command that lists something.

use berth_client::Page;
use clap::Args;

/// Which page of a list.
#[derive(Args, Clone, Copy)]
pub struct PageArgs {
    /// Page, from 1
    #[arg(long, default_value_t = 1)]
    pub page: u32,
    /// Items on a page, 1 to 100
    #[arg(long, default_value_t = 100)]
    pub limit: u32,
}

impl From<PageArgs> for Page {
    fn from(args: PageArgs) -> Self {
        Self { page: args.page, limit: args.limit }
    }
}
