//! The records that a check's process sends to its parent. They are short, so that a process that dies has already sent
//! everything it knew.

use std::io::Write;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A thread panicked. The check may still pass, because code that expects a panic catches it.
    Panic(String),
    /// The check's function returned an error or panicked. After a panic the text is empty, because the panic has its
    /// own record.
    Failed(String),
    /// The check's function returned `Ok`.
    Passed,
    /// The process is exiting. Later records from other threads only reflect the driver's shutdown.
    Leaving,
}

impl Record {
    /// Writes the record: a letter, the length of the text in four bytes, and the text.
    pub(super) fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let (kind, text) = match self {
            Self::Panic(text) => (b'p', text.as_str()),
            Self::Failed(text) => (b'f', text.as_str()),
            Self::Passed => (b'o', ""),
            Self::Leaving => (b'l', ""),
        };
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let mut bytes = vec![kind];
        bytes.extend(length.to_le_bytes());
        bytes.extend(&text.as_bytes()[..length as usize]);
        to.write_all(&bytes)
    }

    /// Reads every complete record in `bytes`, up to the first unfinished or unknown record.
    pub(super) fn read_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut records = Vec::new();
        while let [kind, a, b, c, d, rest @ ..] = bytes {
            let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            let Some((text, rest)) = rest.split_at_checked(length) else { break };
            let text = String::from_utf8_lossy(text).into_owned();
            records.push(match kind {
                b'p' => Self::Panic(text),
                b'f' => Self::Failed(text),
                b'o' => Self::Passed,
                b'l' => Self::Leaving,
                _ => break,
            });
            bytes = rest;
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_stream_still_gives_its_whole_records() {
        let records = [
            Record::Panic("not yet implemented".to_owned()),
            Record::Failed(String::new()),
            Record::Passed,
            Record::Leaving,
        ];
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.write(&mut bytes).unwrap());
        assert_eq!(Record::read_all(&bytes), records);
        for cut in 0..bytes.len() {
            let read = Record::read_all(&bytes[..cut]);
            assert_eq!(read, records[..read.len()], "cut at {cut}");
            assert!(read.len() < records.len());
        }
    }
}
