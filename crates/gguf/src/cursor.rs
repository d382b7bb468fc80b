//! A place in the bytes of a file, which moves forward only after it knows that the bytes are there.

use crate::error::ErrorKind;

/// Reads little-endian fields; every length is compared with the bytes left before anything is allocated.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Bytes from the start of the file.
    pub(crate) fn at(&self) -> u64 {
        self.at as u64
    }

    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `n` bytes; `field` names them in the error.
    pub(crate) fn take(
        &mut self,
        n: u64,
        field: impl FnOnce() -> String,
    ) -> Result<&'a [u8], ErrorKind> {
        let left = self.left();
        if n > left {
            return Err(ErrorKind::Truncated { field: field(), at: self.at(), needed: n, left });
        }
        let start = self.at;
        self.at += n as usize; // at most `left`, which came from a usize
        Ok(&self.bytes[start..self.at])
    }

    pub(crate) fn u32(&mut self, field: impl FnOnce() -> String) -> Result<u32, ErrorKind> {
        self.take(4, field).map(u32_le)
    }

    pub(crate) fn u64(&mut self, field: impl FnOnce() -> String) -> Result<u64, ErrorKind> {
        self.take(8, field).map(u64_le)
    }

    /// A count of things that take at least `least` bytes each.
    pub(crate) fn count(
        &mut self,
        least: u64,
        field: impl Fn() -> String,
    ) -> Result<u64, ErrorKind> {
        let at = self.at();
        let found = self.u64(&field)?;
        let most = self.left() / least;
        if found > most {
            return Err(ErrorKind::Count { field: field(), at, found, left: self.left(), most });
        }
        Ok(found)
    }

    /// A length and as many bytes.
    pub(crate) fn string(&mut self, field: impl Fn() -> String) -> Result<&'a [u8], ErrorKind> {
        let n = self.count(1, || format!("length of {}", field()))?;
        self.take(n, field)
    }
}

pub(crate) fn u32_le(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

pub(crate) fn u64_le(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
