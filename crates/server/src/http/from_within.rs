//! Requests that another part of the service makes of the API. What they say of themselves stands in their extensions, which
//! nobody outside can set.

use berth_domain::ids::KeyId;

/// It is made for a key, whose holder has shown that in another way than by sending it.
#[derive(Clone, Copy, Debug)]
pub struct OnBehalf(pub KeyId);

/// It is a part of a request that was counted.
#[derive(Clone, Copy, Debug)]
pub struct Counted;
