//! The records that a check's process sends to its parent. They are short, so that a process that dies has already sent
//! everything it knew. Each starts with the nonce of the order, which shows that the harness has written it and not the
//! answer.

use std::io::Write;

use super::order::Nonce;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The exercise's functions that the check calls, separated by commas.
    Calls(String),
    /// The check can't run here, for this reason.
    Ignored(String),
    /// The libraries can't be loaded, for this reason. No answer has run yet.
    Unable(String),
    /// A thread panicked. The check may still pass, because code that expects a panic catches it.
    Panic(String),
    /// The check's function returned an error or panicked. After a panic the text is empty, because the panic has its
    /// own record.
    Failed(String),
    /// The costs of the answer, as JSON.
    Score(String),
    /// The check's function returned `Ok`.
    Passed,
    /// The process is exiting. Later records from other threads only reflect the driver's shutdown.
    Leaving,
    /// Bytes without the nonce.
    Forged,
}

/// The length of what precedes a record's text: the nonce, a letter, and the length of the text in four bytes.
const HEAD: usize = size_of::<Nonce>() + 1 + 4;

impl Record {
    /// Writes the record.
    pub(super) fn write(&self, nonce: &Nonce, to: &mut impl Write) -> std::io::Result<()> {
        let (kind, text) = match self {
            Self::Calls(text) => (b'c', text.as_str()),
            Self::Ignored(text) => (b'i', text.as_str()),
            Self::Unable(text) => (b'u', text.as_str()),
            Self::Panic(text) => (b'p', text.as_str()),
            Self::Failed(text) => (b'f', text.as_str()),
            Self::Score(text) => (b's', text.as_str()),
            Self::Passed => (b'o', ""),
            Self::Leaving => (b'l', ""),
            Self::Forged => return Ok(()),
        };
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let mut bytes = nonce.to_vec();
        bytes.push(kind);
        bytes.extend(length.to_le_bytes());
        bytes.extend(&text.as_bytes()[..length as usize]);
        to.write_all(&bytes)
    }

    /// Reads every complete record in `bytes`, up to the first unfinished or forged one.
    pub(super) fn read_all(nonce: &Nonce, mut bytes: &[u8]) -> Vec<Self> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let claimed = &bytes[..bytes.len().min(nonce.len())];
            if !nonce.starts_with(claimed) {
                records.push(Self::Forged);
                break;
            }
            let Some((head, rest)) = bytes.split_at_checked(HEAD) else { break };
            let [kind, a, b, c, d] = head[nonce.len()..] else { break };
            let Some((text, rest)) = rest.split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize) else {
                break;
            };
            let text = String::from_utf8_lossy(text).into_owned();
            records.push(match kind {
                b'c' => Self::Calls(text),
                b'i' => Self::Ignored(text),
                b'u' => Self::Unable(text),
                b'p' => Self::Panic(text),
                b'f' => Self::Failed(text),
                b's' => Self::Score(text),
                b'o' => Self::Passed,
                b'l' => Self::Leaving,
                _ => Self::Forged,
            });
            bytes = rest;
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = [7; 16];

    fn bytes_of(records: &[Record]) -> Vec<u8> {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.write(&NONCE, &mut bytes).unwrap());
        bytes
    }

    #[test]
    fn a_truncated_stream_still_gives_its_whole_records() {
        let records = [
            Record::Calls("one,other".to_owned()),
            Record::Panic("not yet implemented".to_owned()),
            Record::Failed(String::new()),
            Record::Score("{}".to_owned()),
            Record::Passed,
            Record::Leaving,
        ];
        let bytes = bytes_of(&records);
        assert_eq!(Record::read_all(&NONCE, &bytes), records);
        for cut in 0..bytes.len() {
            let read = Record::read_all(&NONCE, &bytes[..cut]);
            assert_eq!(read, records[..read.len()], "cut at {cut}");
            assert!(read.len() < records.len());
        }
    }

    #[test]
    fn bytes_without_the_nonce_are_forged() {
        assert_eq!(Record::read_all(&NONCE, b"ok"), [Record::Forged]);
        assert_eq!(Record::read_all(&NONCE, b"o\0\0\0\0"), [Record::Forged]);
        let mut bytes = bytes_of(&[Record::Calls("one".to_owned())]);
        bytes.extend(bytes_of(&[Record::Passed]).iter().map(|byte| byte ^ 1));
        assert_eq!(Record::read_all(&NONCE, &bytes), [Record::Calls("one".to_owned()), Record::Forged]);
    }
}
