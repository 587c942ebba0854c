//! Tables and maps for a terminal, as wide as they are told.

pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod columns;
pub(crate) mod palette;
pub(crate) mod plan;
pub(crate) mod runs;
pub(crate) mod sparkline;
pub(crate) mod table;
pub(crate) mod verification;
