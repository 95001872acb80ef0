//! A statement and its arguments, for either database.

use std::borrow::Cow;

use berth_domain::page::Page;
use sqlx::{AssertSqlSafe, Executor};
use tokio_util::sync::CancellationToken;

use super::leader::leave_if_silent;
use super::listing::{Listed, Listing};
use super::reader::ReaderInner;
use super::{Db, DbError, FromRow, Pools, Reader, Row, Tx, TxInner};

/// Rows that one transaction removes: nobody waits long for its end.
const BATCH: i64 = 1_000;

/// An argument. An absent one has a type, too, because PostgreSQL needs to know the type of a null.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `TEXT`.
    Text(Option<String>),
    /// `BIGINT`.
    Int(Option<i64>),
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Self::Text(Some(v.to_owned()))
    }
}

impl From<String> for Value {
    fn from(v: String) -> Self {
        Self::Text(Some(v))
    }
}

impl From<&String> for Value {
    fn from(v: &String) -> Self {
        Self::Text(Some(v.clone()))
    }
}

impl From<Option<String>> for Value {
    fn from(v: Option<String>) -> Self {
        Self::Text(v)
    }
}

impl From<Option<&str>> for Value {
    fn from(v: Option<&str>) -> Self {
        Self::Text(v.map(str::to_owned))
    }
}

impl From<i64> for Value {
    fn from(v: i64) -> Self {
        Self::Int(Some(v))
    }
}

impl From<Option<i64>> for Value {
    fn from(v: Option<i64>) -> Self {
        Self::Int(v)
    }
}

impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Self::Int(Some(i64::from(v)))
    }
}

impl From<berth_domain::Timestamp> for Value {
    fn from(v: berth_domain::Timestamp) -> Self {
        Self::Int(Some(v.0))
    }
}

impl From<Option<berth_domain::Timestamp>> for Value {
    fn from(v: Option<berth_domain::Timestamp>) -> Self {
        Self::Int(v.map(|t| t.0))
    }
}

macro_rules! id_values {
    ($($id:ident),*) => {$(
        impl From<berth_domain::ids::$id> for Value {
            fn from(v: berth_domain::ids::$id) -> Self {
                Self::Text(Some(v.to_string()))
            }
        }

        impl From<Option<berth_domain::ids::$id>> for Value {
            fn from(v: Option<berth_domain::ids::$id>) -> Self {
                Self::Text(v.map(|id| id.to_string()))
            }
        }
    )*};
}
id_values!(
    UserId,
    OrgId,
    ProjectId,
    SessionId,
    KeyId,
    InvitationId,
    OutboxId,
    ReferralId,
    VmId,
    DiskId,
    DiskSnapshotId,
    BackupId,
    BackupScheduleId,
    ImageId,
    OperationId,
    SandboxId,
    TemplateId,
    SnapshotId,
    LayerCopyId,
    LayerId,
    MemoryId,
    UploadId,
    MachineId,
    HostId,
    NetworkId,
    SshKeyId
);

/// Where a statement runs: the database or a connection to it for reading, or a transaction.
pub trait On {
    /// The connections behind it.
    #[doc(hidden)]
    fn target(&mut self) -> Target<'_>;
}

#[doc(hidden)]
pub enum Target<'a> {
    Db(&'a Db),
    Reader(&'a mut Reader),
    Tx(&'a mut Tx),
}

impl On for &Db {
    fn target(&mut self) -> Target<'_> {
        Target::Db(self)
    }
}

impl On for &mut Reader {
    fn target(&mut self) -> Target<'_> {
        Target::Reader(self)
    }
}

impl On for &mut Tx {
    fn target(&mut self) -> Target<'_> {
        Target::Tx(self)
    }
}

/// A statement with its arguments, in the order of `$1`, `$2`, ….
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    text: Cow<'static, str>,
    args: Vec<Value>,
}

/// Begins a statement. The text never holds anything from outside.
pub fn sql(text: impl Into<Cow<'static, str>>) -> Query {
    Query { text: text.into(), args: Vec::new() }
}

/// The marks of the first so many arguments of a statement, as they stand between the brackets of `IN (…)`: at least one, which
/// PostgreSQL wants.
pub fn marks(count: usize) -> String {
    (1..=count).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ")
}

macro_rules! with_args {
    ($self:ident) => {{
        let mut query = sqlx::query(AssertSqlSafe($self.text));
        for arg in $self.args {
            query = match arg {
                Value::Text(v) => query.bind(v),
                Value::Int(v) => query.bind(v),
            };
        }
        query
    }};
}

macro_rules! on_target {
    ($self:ident, $target:expr, $method:ident) => {
        match $target {
            Target::Db(Db { pools: Pools::Sqlite { read, .. }, .. }) => {
                read.$method(with_args!($self)).await.map(|r| r.into_common())
            }
            Target::Db(Db { pools: Pools::Postgres(leader), .. }) => {
                let link = leader.link();
                match link.ask(link.pool.acquire()).await {
                    Ok(mut connection) => {
                        let outcome = link.read((&mut *connection).$method(with_args!($self))).await;
                        leave_if_silent(&mut connection, outcome.as_ref().err());
                        outcome.map(|r| r.into_common())
                    }
                    Err(none) => Err(none),
                }
            }
            Target::Reader(Reader(ReaderInner::Sqlite(connection))) => {
                (&mut **connection).$method(with_args!($self)).await.map(|r| r.into_common())
            }
            Target::Reader(Reader(ReaderInner::Postgres(connection, link))) => {
                let outcome = link.read((&mut **connection).$method(with_args!($self))).await;
                leave_if_silent(connection, outcome.as_ref().err());
                outcome.map(|r| r.into_common())
            }
            Target::Tx(Tx { inner: TxInner::Sqlite(tx), .. }) => {
                (&mut **tx).$method(with_args!($self)).await.map(|r| r.into_common())
            }
            Target::Tx(Tx { inner: TxInner::Postgres(pen), .. }) => {
                let outcome = match pen.connection() {
                    Ok((asks, connection)) => asks.ask(connection.$method(with_args!($self))).await,
                    Err(gone) => Err(gone),
                };
                pen.note(outcome.as_ref().err());
                outcome.map(|r| r.into_common())
            }
        }
    };
}

impl Query {
    /// The next argument.
    #[must_use]
    pub fn bind(mut self, value: impl Into<Value>) -> Self {
        self.args.push(value.into());
        self
    }

    /// The next arguments.
    #[must_use]
    pub fn bind_all(self, values: impl IntoIterator<Item = impl Into<Value>>) -> Self {
        values.into_iter().fold(self, Self::bind)
    }

    /// An insertion that says what to do if a row is in its way: `(columns of a unique rule) DO …`, in which `excluded`
    /// is the new row.
    #[must_use]
    pub fn on_conflict(mut self, action: &str) -> Self {
        self.text = format!("{} ON CONFLICT {action}", self.text).into();
        self
    }

    /// Runs it; the number of rows changed.
    pub async fn execute(self, tx: &mut Tx) -> Result<u64, DbError> {
        Ok(on_target!(self, Target::Tx(tx), execute)?)
    }

    /// Removes rows, so many by each transaction of its own, until one finds fewer or it is told to stop: others wait for the end of each.
    /// Its last argument is to be how many.
    pub async fn remove_in_batches(self, db: &Db, stop: &CancellationToken) -> Result<(), DbError> {
        while !stop.is_cancelled() {
            let mut tx = db.begin_in_bulk().await?;
            let removed = self.clone().bind(BATCH).execute(&mut tx).await?;
            tx.commit().await?;
            if removed < BATCH.unsigned_abs() {
                break;
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Every row.
    pub async fn fetch_all<T: FromRow>(self, mut on: impl On) -> Result<Vec<T>, DbError> {
        self.rows(on.target()).await?.iter().map(T::from_row).collect()
    }

    /// The row, if there is one.
    pub async fn fetch_optional<T: FromRow>(self, mut on: impl On) -> Result<Option<T>, DbError> {
        self.row(on.target()).await?.as_ref().map(T::from_row).transpose()
    }

    /// The row; an error if there is none.
    pub async fn fetch_one<T: FromRow>(self, on: impl On) -> Result<T, DbError> {
        self.fetch_optional(on).await?.ok_or_else(|| DbError::Other("a row was expected".into()))
    }

    // From here on no type of a row is known: the compiler generates this part, with both drivers, only once.

    async fn rows(self, target: Target<'_>) -> Result<Vec<Row>, DbError> {
        Ok(on_target!(self, target, fetch_all)?)
    }

    async fn row(self, target: Target<'_>) -> Result<Option<Row>, DbError> {
        Ok(on_target!(self, target, fetch_optional)?)
    }
}

/// A page of a list: its rows in order, and how many there are in all.
#[derive(Clone, Debug)]
pub struct PageQuery {
    columns: Cow<'static, str>,
    from: Query,
    join: &'static str,
}

/// Begins a list: its columns, and the text after `FROM`, which ends with a condition.
pub fn page_of(columns: impl Into<Cow<'static, str>>, from: impl Into<Cow<'static, str>>) -> PageQuery {
    PageQuery { columns: columns.into(), from: sql(from), join: "" }
}

impl PageQuery {
    /// Joins a table that has exactly one row for each of the first table of `FROM`: to the rows of the page, and not to
    /// those that are counted.
    #[must_use]
    pub const fn joining(mut self, join: &'static str) -> Self {
        self.join = join;
        self
    }

    /// The next argument.
    #[must_use]
    pub fn bind(mut self, value: impl Into<Value>) -> Self {
        self.from = self.from.bind(value);
        self
    }

    /// A page of what a caller asked for, and the total.
    pub async fn list<T: FromRow>(
        mut self,
        db: &Db,
        listed: &Listed,
        listing: &Listing,
    ) -> Result<(Vec<T>, i64), DbError> {
        listed.narrow(&mut self.from.text, &mut self.from.args, listing);
        self.fetch(db, &listed.order(listing.sort), listing.page).await
    }

    /// A page in the given order, and the total.
    pub async fn fetch<T: FromRow>(self, db: &Db, order: &str, page: Page) -> Result<(Vec<T>, i64), DbError> {
        let Self { columns, from: Query { text, args }, join } = self;
        let count = Query { text: format!("SELECT COUNT(*) FROM {text}").into(), args: args.clone() };
        let total: i64 = count.fetch_one(db).await?;
        if page.offset() >= total {
            return Ok((Vec::new(), total));
        }
        let n = args.len();
        let (table, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let order = format!("ORDER BY {order} LIMIT ${} OFFSET ${}", n + 1, n + 2);
        let rows = format!("SELECT {columns} FROM {table} {join} {rest} {order}");
        let rows = Query { text: rows.into(), args }.bind(page.limit).bind(page.offset()).fetch_all(db).await?;
        Ok((rows, total))
    }
}

/// Converts one database's result into the common type.
trait IntoCommon {
    type Common;
    fn into_common(self) -> Self::Common;
}

impl IntoCommon for sqlx::sqlite::SqliteQueryResult {
    type Common = u64;
    fn into_common(self) -> u64 {
        self.rows_affected()
    }
}

impl IntoCommon for sqlx::postgres::PgQueryResult {
    type Common = u64;
    fn into_common(self) -> u64 {
        self.rows_affected()
    }
}

impl IntoCommon for sqlx::sqlite::SqliteRow {
    type Common = Row;
    fn into_common(self) -> Row {
        Row::Sqlite(self)
    }
}

impl IntoCommon for sqlx::postgres::PgRow {
    type Common = Row;
    fn into_common(self) -> Row {
        Row::Postgres(self)
    }
}

impl<T: IntoCommon> IntoCommon for Option<T> {
    type Common = Option<T::Common>;
    fn into_common(self) -> Self::Common {
        self.map(T::into_common)
    }
}

impl<T: IntoCommon> IntoCommon for Vec<T> {
    type Common = Vec<T::Common>;
    fn into_common(self) -> Self::Common {
        self.into_iter().map(T::into_common).collect()
    }
}
