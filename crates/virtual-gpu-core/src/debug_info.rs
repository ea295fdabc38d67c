//! The source lines of an address in the program's code, from the debug information of the file that it was loaded from.
//!
//! Debug information that is compressed or in other files is not read: Cargo makes neither unless a profile asks for it.

use std::fs::File;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use elf::ElfBytes;
use elf::abi::{PT_LOAD, STT_FUNC};
use elf::endian::NativeEndian;
use elf::string_table::StringTable;
use elf::symbol::Symbol;
use gimli::{Dwarf, EndianSlice, SectionId};

use crate::loaded_file::Loaded;
use crate::map::Map;
use crate::mapped_file::map_forever;
use crate::source_location::{SourceLine, is_foreign};

/// One function at an address. Several are there where functions were inlined.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The function's demangled name, such as `cudarc::driver::safe::core::CudaSlice<T>::leak`, or `leak<f32>` for an
    /// inlined function; empty if it is unknown.
    pub(crate) function: String,
    /// The line of the call or of the instruction; `None` if the function was compiled without line tables.
    pub(crate) line: Option<SourceLine>,
    /// Whether that line is in code that the user did not write.
    pub(crate) is_foreign: bool,
}

/// Returns the functions at an address, the innermost first; none if the address is in no file's code, or in a file of
/// the system.
///
/// Answers are remembered: a program makes its calls from few places, and seldom unloads a library and loads another
/// at the same address.
pub(crate) fn frames_at(address: usize) -> Arc<[Frame]> {
    let mut known = known();
    if let Some(frames) = known.frames.get(&address) {
        return frames.clone();
    }
    let frames: Arc<[Frame]> = known.find(address).unwrap_or_default().into();
    known.frames.insert(address, frames.clone());
    frames
}

/// Reads what the files that are loaded now have in common for all addresses. If the process is forked afterward, its
/// forks needn't read it again.
pub(crate) fn read_loaded_files() {
    let mut known = known();
    for loaded in Loaded::all() {
        known.files.entry(loaded.base).or_insert_with(|| DebugInfo::read(&loaded));
    }
}

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Known {
    frames: Map<usize, Arc<[Frame]>>,
    /// By the address where a file is mapped; `None` if its debug information can't be read.
    files: Map<usize, Option<DebugInfo>>,
}

impl Known {
    fn find(&mut self, address: usize) -> Option<Vec<Frame>> {
        let loaded = Loaded::at(address).filter(|loaded| !loaded.is_of_system())?;
        let file = self.files.entry(loaded.base).or_insert_with(|| DebugInfo::read(&loaded));
        file.as_ref().map(|file| file.frames_at(address))
    }
}

type Slice = EndianSlice<'static, gimli::NativeEndian>;

/// The debug information of one loaded file, and its symbols.
struct DebugInfo {
    /// The difference between an address in memory and the same address in the file.
    bias: u64,
    lines: addr2line::Context<Slice>,
    /// The functions in order of their addresses.
    symbols: Vec<Symbol>,
    names: StringTable<'static>,
}

impl DebugInfo {
    fn read(loaded: &Loaded) -> Option<Self> {
        let bytes = map_forever(&File::open(loaded.file()).ok()?)?;
        let file = ElfBytes::<NativeEndian>::minimal_parse(bytes).ok()?;
        let first = file.segments()?.iter().find(|segment| segment.p_type == PT_LOAD)?;
        // The loader maps the page with the first byte at the base.
        let first_page = first.p_vaddr - first.p_vaddr % first.p_align.max(1);
        let bias = (loaded.base as u64).wrapping_sub(first_page);

        let section = |id: SectionId| -> Result<Slice, gimli::Error> {
            let header = file.section_header_by_name(id.name()).ok().flatten();
            let data = header.and_then(|header| file.section_data(&header).ok());
            let bytes =
                data.filter(|(_, compression)| compression.is_none()).map_or(&[][..], |(bytes, _)| bytes);
            Ok(EndianSlice::new(bytes, gimli::NativeEndian))
        };
        let lines = addr2line::Context::from_dwarf(Dwarf::load(section).ok()?).ok()?;

        let (symbols, names) = match file.symbol_table() {
            Ok(Some((table, names))) => {
                (table.iter().filter(|symbol| symbol.st_symtype() == STT_FUNC).collect(), names)
            }
            _ => (Vec::new(), StringTable::default()),
        };
        let mut file = Self { bias, lines, symbols, names };
        file.symbols.sort_unstable_by_key(|symbol| symbol.st_value);
        Some(file)
    }

    fn frames_at(&self, address: usize) -> Vec<Frame> {
        let address = (address as u64).wrapping_sub(self.bias);
        let mut found = Vec::new();
        if let Ok(mut frames) = self.lines.find_frames(address).skip_all_loads() {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
                let function = match name {
                    Some(name) => demangled(&name),
                    None => self.symbol_at(address),
                };
                let line = frame.location.and_then(|location| {
                    let column = location.column.filter(|&at| at > 0).unwrap_or(1);
                    Some(SourceLine { file: location.file?.into(), line: location.line?, column })
                });
                let is_foreign = line.as_ref().is_some_and(|line| is_foreign(&line.file));
                found.push(Frame { function, line, is_foreign });
            }
        }
        if found.is_empty() {
            found.push(Frame { function: self.symbol_at(address), line: None, is_foreign: false });
        }
        found
    }

    fn symbol_at(&self, address: u64) -> String {
        let after = self.symbols.partition_point(|symbol| symbol.st_value <= address);
        let symbol = self.symbols[..after].last();
        let symbol = symbol.filter(|symbol| address - symbol.st_value < symbol.st_size);
        let name = symbol.and_then(|symbol| self.names.get(symbol.st_name as usize).ok());
        name.map(demangled).unwrap_or_default()
    }
}

/// Returns a symbol's name without the hash that Rust appends to it.
fn demangled(symbol: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn a_function() -> Arc<[Frame]> {
        // The first instruction of this function.
        frames_at(a_function as fn() -> Arc<[Frame]> as usize)
    }

    #[test]
    fn an_address_has_a_function() {
        let frames = a_function();
        assert!(frames[0].function.ends_with("::a_function"), "{frames:?}");
        assert!(Arc::ptr_eq(&frames, &a_function()));
        let nowhere = frames_at(8);
        assert!(nowhere.is_empty());
    }

    #[test]
    fn the_c_library_has_no_functions_of_a_program() {
        assert!(frames_at(libc::getpid as *const () as usize).is_empty());
    }

    #[test]
    fn a_name_has_no_hash() {
        assert_eq!(
            demangled("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(demangled("main"), "main");
    }
}
