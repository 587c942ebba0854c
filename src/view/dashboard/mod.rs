//! The dashboard of `train --tui`: its state and how it is drawn. `cli` gives it the terminal and the events of a run.

mod board;
mod draw;
mod load;

pub(crate) use board::Board;
pub(crate) use draw::draw;
pub(crate) use load::Meter;
