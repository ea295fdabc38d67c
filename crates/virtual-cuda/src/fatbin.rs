//! Fat binaries: files that hold a program for several GPUs, as machine code, as PTX, or both. nvcc puts one into each
//! program, and `nvcc -fatbin` writes one.
//!
//! NVIDIA doesn't document the format. What is read here is what `fatbinary` of CUDA 13.0 writes: a header of 16 bytes, and
//! then entries, each with a header of its own.

use std::io::Read;

use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::pointer::Bytes;

/// The first four bytes of a fat binary.
pub(crate) const MAGIC: [u8; 4] = [0x50, 0xed, 0x55, 0xba];
/// The first four bytes of the structure that nvcc puts around a fat binary. The address of the fat binary is at offset 8.
pub(crate) const WRAPPER_MAGIC: [u8; 4] = [0xb1, 0x43, 0x62, 0x46];
/// The size of a fat binary's header in bytes.
const HEADER: usize = 16;

/// The kind of an entry with PTX. The other kinds are machine code and intermediate code.
const PTX: u16 = 1;
/// The flags of an entry that is compressed, with LZ4 and with Zstandard.
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
/// The virtual GPU's compute capability, as in `sm_90`.
const CAPABILITY: u32 = 90;
/// The most bytes that an entry may have when it is no longer compressed.
const MOST: u64 = 1 << 30;

/// Returns the fat binary at a pointer: as many bytes as its header states, but at most `most`. Of anything else, returns
/// up to four bytes. Returns `None` if the pointer is null.
pub(crate) fn at<'a>(data: Bytes, most: usize) -> Option<&'a [u8]> {
    // A fat binary has no 0 in its first four bytes.
    let start = data.until_zero(MAGIC.len().min(most))?;
    if start != MAGIC || most < HEADER {
        return Some(start);
    }
    // A slice can't have more bytes than this. The header of such a file is damaged.
    let bytes = Some(end(data.read(HEADER)?).min(most)).filter(|&bytes| bytes <= isize::MAX as usize);
    data.read(bytes.unwrap_or(HEADER))
}

/// Returns the size of a fat binary with this header.
fn end(header: &[u8]) -> usize {
    HEADER.saturating_add(number(header, 8, 8).unwrap_or(0) as usize)
}

/// Returns the PTX that a driver would compile: of the entries that this GPU can run, the one for the newest GPU.
///
/// # Errors
/// Returns `NoBinaryForGpu` if there is none, and `InvalidImage` if the file is damaged.
pub(crate) fn ptx(file: &[u8]) -> CudaResult<String> {
    let (mut best, mut others) = (None, Vec::new());
    let header = file
        .get(..HEADER)
        .filter(|header| header.starts_with(&MAGIC))
        .ok_or_else(|| damaged("its header"))?;
    let mut at = number(header, 6, 2).unwrap_or(0) as usize;
    while at < end(file) {
        let entry = Entry::read(file, at).ok_or_else(|| damaged(&format!("the entry at byte {at}")))?;
        at = entry.end;
        if entry.kind != PTX {
            others.push(format!("machine code for sm_{}", entry.architecture));
        } else if entry.architecture > CAPABILITY {
            others.push(format!("PTX for compute_{}", entry.architecture));
        } else if best.as_ref().is_none_or(|best: &Entry<'_>| best.architecture < entry.architecture) {
            best = Some(entry);
        }
    }
    let Some(best) = best else {
        others.dedup();
        let has = if others.is_empty() { "nothing".to_owned() } else { others.join(", ") };
        let message = format!(
            "virtual GPU: this fat binary has no PTX for a GPU of compute capability 9.0 or less: it has {has}; compile it \
             with `nvcc -gencode arch=compute_90,code=compute_90`"
        );
        return Err(Error::new(CudaStatus::NoBinaryForGpu, message));
    };
    let text = best.text().ok_or_else(|| damaged("its PTX"))?;
    String::from_utf8(text).map_err(|_| damaged("its PTX, which is not UTF-8"))
}

fn damaged(what: &str) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidImage, format!("this fat binary is cut off or damaged: can't read {what}"))
}

/// Returns the little-endian number of `bytes` bytes at an offset, or `None` beyond the end.
fn number(file: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let mut value = [0; 8];
    value[..bytes].copy_from_slice(file.get(at..at.checked_add(bytes)?)?);
    Some(u64::from_le_bytes(value))
}

/// A program for one GPU.
struct Entry<'a> {
    kind: u16,
    /// The compute capability that it is for, as in `sm_90`.
    architecture: u32,
    flags: u64,
    payload: &'a [u8],
    /// The payload's size when it is no longer compressed; 0 if it is not compressed.
    size: u64,
    /// Where the next entry begins.
    end: usize,
}

impl<'a> Entry<'a> {
    fn read(file: &'a [u8], at: usize) -> Option<Self> {
        let field = |offset: usize, bytes: usize| number(file, at.checked_add(offset)?, bytes);
        let start = at.checked_add(field(4, 4)? as usize)?;
        let end = start.checked_add(usize::try_from(field(8, 8)?).ok()?)?;
        let (flags, compressed) = (field(40, 8)?, field(16, 4)? as usize);
        let padded = file.get(start..end).filter(|_| end > at)?;
        let payload = if flags & (LZ4 | ZSTD) == 0 { padded } else { padded.get(..compressed)? };
        Some(Self {
            kind: field(0, 2)? as u16,
            architecture: field(28, 4)? as u32,
            flags,
            payload,
            size: field(56, 8)?,
            end,
        })
    }

    /// Returns the PTX without the zeros after it, or `None` if it can't be decompressed.
    fn text(&self) -> Option<Vec<u8>> {
        if self.size > MOST {
            return None;
        }
        let mut text = if self.flags & ZSTD != 0 {
            let mut text = Vec::new();
            let decoder = ruzstd::decoding::StreamingDecoder::new(self.payload).ok()?;
            decoder.take(self.size).read_to_end(&mut text).ok()?;
            text
        } else if self.flags & LZ4 != 0 {
            lz4_flex::block::decompress(self.payload, self.size as usize).ok()?
        } else {
            self.payload.to_vec()
        };
        text.truncate(text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
        Some(text)
    }
}
