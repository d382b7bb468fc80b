//! How 64 numbers of a workgroup become one: through its memory, or below the size of a subgroup among its invocations. Both
//! join by halves, in the same order.

use firth_graph::LoadError;

use crate::compile::CompileCx;

const ALONE: &str = include_str!("../wgsl/sums_alone.wgsl");
const SUBGROUP: &str = include_str!("../wgsl/sums_subgroup.wgsl");

/// For each name an array of workgroup memory and the functions that join it: `plus_part()` and `upper_part()` of `part`. Every
/// invocation calls them, behind a barrier.
pub(super) fn text(cx: &CompileCx, arrays: &[&str]) -> Result<String, LoadError> {
    let join = if cx.has_subgroups()? { SUBGROUP } else { ALONE };
    Ok(arrays.iter().map(|a| join.replace("ARRAY", a)).collect())
}
