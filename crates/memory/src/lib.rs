//! Memory of sequences: pages of keys and values, shared between sequences, forks and snapshots.
//!
//! This crate keeps the books only: page numbers, reference counts, tables. Layers of one lifetime (all
//! tokens, or a window) form a page group with a pool of its own; devices hold the rows and make the
//! copies that a plan lists.
//!
//! A step goes in two phases: [`Memory::plan`] reserves what the step appends, [`Memory::commit`] says
//! which tokens came of it. Between them the tables of [`Memory::page_table`] reach to the planned length.
//!
//! # Pages
//! Pages are append-only, with one writer and a mark below which others share. The writer appends above
//! the mark without copying; anyone else, and a writer that rolled back below the mark, copies first. A
//! page whose writer is gone is taken over by the first who appends above the mark. Nothing in a page
//! points back, so reference counts suffice. A window's page is freed when no reachable index sees it.
//!
//! # Slots
//! What is not in pages (bases and logs of recurrences, rings) lies in slots, counted like pages. A step
//! reads one slot and writes one: the same where the sequence is its only holder, else a fresh one. So a
//! fork or a snapshot adds a reference and copies nothing, and a shared slot never changes. A slot says how
//! far back its holders can go: to the tokens its bases have taken in, above which the log stands.
//!
//! # Snapshots
//! A snapshot is everything a sequence needs at one index. The prefix tree holds them under one budget;
//! by the cut law what it gives back equals what would be computed, so which snapshots it drops never
//! reaches an output.

#![forbid(unsafe_code)]

mod books;
mod check;
mod error;
mod evict;
mod memory;
mod plan;
mod points;
mod pool;
mod slot;
mod snapshots;
mod spec;
mod table;
mod tree;

pub use books::{Books, StateBooks};
pub use error::{Full, ImportError, Limit, OutOfReach, Stale};
pub use memory::{Memory, Seq, Stats};
pub use plan::{Append, Copy, Lost, SlotUse};
pub use points::snapshot_points;
pub use spec::{GroupSpec, MemorySpec, PAGE, SlotSpec, pages_per_sequence, slots_per_sequence};
pub use tree::SnapshotId;
