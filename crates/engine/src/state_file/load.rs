//! Reading a state file: everything is checked before anything changes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use firth_graph::PAGE;
use firth_memory::Seq;

use super::NUMERICS;
use super::checksum::Checksum;
use super::error::StateFileError;
use super::header::{Header, MAGIC, Prefix, StateEntry, VERSION};
use crate::load::Engine;

impl Engine {
    /// Opens a sequence as it was saved, in a cache domain; its next logits have the bits that they would have had
    /// without the file. Snapshots may be dropped to make room.
    ///
    /// # Errors
    /// The file cannot be read or is not whole, it is of another model or was made under other settings, or the
    /// sequence finds no place. No sequence has changed.
    pub fn load_state(&mut self, domain: u64, path: &Path) -> Result<Seq, StateFileError> {
        let mut file = StateFile::open(path)?;
        let header = file.header()?;
        self.check_header(&file, &header)?;
        let failed = |source| StateFileError::Import { path: path.into(), source };
        let seq = self.memory.import(domain, &header.books).map_err(failed)?;
        let read = self.read_states(&mut file, &header, seq);
        if let Err(e) = read {
            self.memory.close(seq);
            return Err(e);
        }
        Ok(seq)
    }

    fn check_header(&self, file: &StateFile, h: &Header) -> Result<(), StateFileError> {
        let own = self.header(h.books.clone());
        let hex = |n: u64| format!("{n:016x}");
        file.same("model", || hex(h.model), || hex(own.model), h.model == own.model)?;
        file.same("--kv", || h.kv.clone(), || own.kv.clone(), h.kv == own.kv)?;
        let names =
            |states: &[StateEntry]| states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
        let same = h.states.len() == own.states.len()
            && h.states.iter().zip(&own.states).all(|(a, b)| a.name == b.name && a.group == b.group);
        file.same("--spec (list of states)", || names(&h.states), || names(&own.states), same)?;
        let rows = |n: u64| format!("drafts of at most {n}");
        let (found, expected) = (h.longest_draft, own.longest_draft);
        file.same("--spec-max", || rows(found), || rows(expected), found == expected)?;
        for (found, expected) in h.states.iter().zip(&own.states) {
            let what = format!("form of state {}", found.name);
            let size = |s: &StateEntry| format!("{} bytes on {}", s.bytes, s.device);
            file.same(&what, || size(found), || size(expected), found == expected)?;
        }
        let (found, expected) = (h.books.first_pages.len(), self.info.groups.len());
        if found != expected {
            return Err(file.damaged(format!("{found} page groups, expected {expected}")));
        }
        let n_vocab = self.info.n_vocab;
        if let Some(id) = h.books.tokens.iter().find(|id| **id as usize >= n_vocab) {
            return Err(file.damaged(format!("token id {id} is outside the vocabulary of {n_vocab}")));
        }
        let ends = Prefix::BYTES as u64 + file.prefix.header + 8;
        let expected = self.payload(&h.books).and_then(|n| n.checked_add(ends));
        match expected == Some(file.prefix.file) {
            true => Ok(()),
            false => Err(file.damaged(format!("{} bytes do not fit its books", file.prefix.file))),
        }
    }

    /// Fills the pages and the slot of a sequence that was just imported.
    fn read_states(&mut self, file: &mut StateFile, h: &Header, seq: Seq) -> Result<(), StateFileError> {
        let n_pages = h.books.tokens.len().div_ceil(PAGE);
        let mut page = Vec::new();
        for s in &self.identity.states {
            page.resize(s.entry.bytes as usize, 0);
            let device = &self.resources.devices[s.device];
            let Some(group) = s.entry.group.map(|g| g as usize) else {
                if let Some(slot) = self.memory.slot(seq) {
                    file.next(&mut page)?;
                    device.write_page(s.id, slot, &page)?;
                }
                continue;
            };
            let mut held = self.memory.held_pages(seq, group).peekable();
            for i in h.books.first_pages[group]..n_pages {
                file.next(&mut page)?;
                // A window may need less than was saved.
                if let Some((_, at, _)) = held.next_if(|(index, ..)| *index == i) {
                    device.write_page(s.id, at, &page)?;
                }
            }
        }
        file.end()
    }
}

/// A state file whose size and checksum are right.
struct StateFile<'a> {
    path: &'a Path,
    file: File,
    prefix: Prefix,
    /// The checksum at its end.
    expected: u64,
    /// Of what was read so far.
    sum: Checksum,
}

impl<'a> StateFile<'a> {
    fn open(path: &'a Path) -> Result<Self, StateFileError> {
        let failed = |source| StateFileError::Io { path: path.into(), source };
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let none = Prefix { magic: MAGIC, version: 0, numerics: 0, header: 0, file: len };
        let mut f = StateFile { path, file, prefix: none, expected: 0, sum: Checksum::new() };
        if len < Prefix::BYTES as u64 + 8 {
            return Err(f.damaged(format!("it has {len} bytes")));
        }
        let mut bytes = [0; Prefix::BYTES];
        f.next(&mut bytes)?;
        f.prefix = Prefix::decode(&bytes);
        f.check_prefix(len)?;
        f.check_sum(len)?;
        Ok(f)
    }

    fn check_prefix(&self, len: u64) -> Result<(), StateFileError> {
        let p = self.prefix;
        if p.magic != MAGIC {
            return Err(self.damaged("it does not begin as one".into()));
        }
        let text = |n: u32| n.to_string();
        self.same("version of state files", || text(p.version), || text(VERSION), p.version == VERSION)?;
        self.same("NUMERICS", || text(p.numerics), || text(NUMERICS), p.numerics == NUMERICS)?;
        if p.file != len {
            return Err(self.damaged(format!("it has {len} bytes, expected {}", p.file)));
        }
        let most = len - Prefix::BYTES as u64 - 8;
        match p.header <= most {
            true => Ok(()),
            false => Err(self.damaged(format!("its header has {} bytes, expected at most {most}", p.header))),
        }
    }

    /// Reads all of it once, and goes back to behind the prefix.
    fn check_sum(&mut self, len: u64) -> Result<(), StateFileError> {
        let mut left = len - Prefix::BYTES as u64 - 8;
        let mut piece = vec![0; left.min(1 << 20) as usize];
        while left > 0 {
            let n = left.min(piece.len() as u64) as usize;
            self.next(&mut piece[..n])?;
            left -= n as u64;
        }
        let sum = self.sum.value();
        let mut last = [0; 8];
        self.next(&mut last)?;
        self.expected = u64::from_le_bytes(last);
        if sum != self.expected {
            let (found, expected) = (sum, self.expected);
            return Err(self.damaged(format!("its checksum is {found:016x}, expected {expected:016x}")));
        }
        let start = self.file.seek(SeekFrom::Start(Prefix::BYTES as u64));
        start.map_err(|source| self.io(source))?;
        self.sum = Checksum::new();
        self.sum.update(&self.prefix.encode());
        Ok(())
    }

    fn header(&mut self) -> Result<Header, StateFileError> {
        // No larger than the file.
        let mut bytes = vec![0; self.prefix.header as usize];
        self.next(&mut bytes)?;
        Header::decode(&bytes).ok_or_else(|| self.damaged("its header cannot be read".into()))
    }

    /// The next bytes.
    fn next(&mut self, out: &mut [u8]) -> Result<(), StateFileError> {
        self.file.read_exact(out).map_err(|source| self.io(source))?;
        self.sum.update(out);
        Ok(())
    }

    /// Says whether the second reading was the first's.
    fn end(&mut self) -> Result<(), StateFileError> {
        match self.sum.value() == self.expected {
            true => Ok(()),
            false => Err(self.damaged("it changed while it was read".into())),
        }
    }

    fn io(&self, source: io::Error) -> StateFileError {
        StateFileError::Io { path: self.path.into(), source }
    }

    fn damaged(&self, what: String) -> StateFileError {
        StateFileError::Damaged { path: self.path.into(), what }
    }

    fn same(
        &self,
        what: &str,
        found: impl Fn() -> String,
        expected: impl Fn() -> String,
        same: bool,
    ) -> Result<(), StateFileError> {
        match same {
            true => Ok(()),
            false => Err(StateFileError::Other {
                path: self.path.into(),
                what: what.into(),
                found: found(),
                expected: expected(),
            }),
        }
    }
}
