//! Reads what a shared library exports and which texts it contains.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context;
use elf::ElfBytes;
use elf::endian::NativeEndian;

/// A shared library, as a file.
pub(crate) struct Elf {
    exports: BTreeSet<String>,
    texts: BTreeSet<String>,
}

impl Elf {
    /// Reads the exported symbols and the texts of a library.
    ///
    /// # Errors
    /// Fails if the file can't be read, or is not a library.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let contents = || {
            let file = ElfBytes::<NativeEndian>::minimal_parse(&bytes)?;
            let mut exports = BTreeSet::new();
            if let Some((symbols, names)) = file.dynamic_symbol_table()? {
                for symbol in symbols.iter().filter(|symbol| !symbol.is_undefined()) {
                    exports.insert(names.get(symbol.st_name as usize)?.to_owned());
                }
            }
            let mut texts = BTreeSet::new();
            if let (Some(sections), Some(names)) = file.section_headers_with_strtab()? {
                for section in sections.iter() {
                    // Machine code for GPUs has a section of its own, and is most of NCCL.
                    if names.get(section.sh_name as usize)?.starts_with(".rodata") {
                        let pieces = file.section_data(&section)?.0.split(|&byte| byte == 0);
                        texts.extend(pieces.filter_map(|text| String::from_utf8(text.to_vec()).ok()));
                    }
                }
            }
            anyhow::Ok(Self { exports, texts })
        };
        contents().with_context(|| path.display().to_string())
    }

    /// Returns the exported symbols whose names start with `prefix`.
    pub(crate) fn exports(&self, prefix: &str) -> BTreeSet<&str> {
        self.exports.iter().map(String::as_str).filter(|name| name.starts_with(prefix)).collect()
    }

    /// Returns whether the library has a text that ends with `text`. A linker may store a text inside a longer one with
    /// the same end.
    pub(crate) fn has_text(&self, text: &str) -> bool {
        self.texts.iter().any(|whole| whole.ends_with(text))
    }

    /// Returns the texts that contain `part`.
    pub(crate) fn texts_with<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a str> {
        self.texts.iter().map(String::as_str).filter(move |text| text.contains(part))
    }
}
