//! Reads the declarations in a C header.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use bindgen::{Builder, EnumVariation, Formatter};

/// What a header declares.
pub(super) struct Declarations {
    /// The sizes of structures in bytes.
    sizes: BTreeMap<String, usize>,
    /// The offsets of fields in bytes, by `structure::field`.
    offsets: BTreeMap<String, usize>,
    /// The values of constants and macros.
    values: BTreeMap<String, i64>,
    /// The enumerators of each enumeration, with their values.
    enumerators: BTreeMap<String, Vec<(String, i64)>>,
}

impl Declarations {
    /// Reads a header, and those that it includes, first from `folders`.
    ///
    /// # Errors
    /// Fails if it can't be parsed, or if it declares nothing.
    pub(super) fn read(header: &Path, folders: &[PathBuf]) -> anyhow::Result<Self> {
        let mut builder = Builder::default()
            .header(header.to_string_lossy())
            .clang_arg(format!("-I{}", super::compiler_headers()?))
            .default_enum_style(EnumVariation::Consts)
            .prepend_enum_name(false)
            .generate_comments(false)
            .layout_tests(true)
            .formatter(Formatter::None);
        for folder in folders {
            builder = builder.clang_arg(format!("-I{}", folder.display()));
        }
        let bindings = builder.generate().with_context(|| header.display().to_string())?;
        let mut declarations = Self::of_rust(&bindings.to_string());
        let text = std::fs::read_to_string(header).with_context(|| header.display().to_string())?;
        declarations.values.extend(text.lines().filter_map(left_out_macro));
        let Self { sizes, offsets, values, .. } = &declarations;
        ensure!(
            !sizes.is_empty() && !offsets.is_empty() && !values.is_empty(),
            "{} is empty",
            header.display()
        );
        Ok(declarations)
    }

    /// Reads what bindgen writes: constants such as `pub const CUDA_SUCCESS : cudaError_enum = 0 ;`, and tests such as
    /// `["Size of CUuuid_st"] [:: std :: mem :: size_of :: < CUuuid_st > () - 16usize] ;`.
    fn of_rust(text: &str) -> Self {
        let mut declarations = Self {
            sizes: BTreeMap::new(),
            offsets: BTreeMap::new(),
            values: BTreeMap::new(),
            enumerators: BTreeMap::new(),
        };
        for statement in text.split(';') {
            let statement = statement.trim();
            if let Some((kind, name, number)) = layout_test(statement) {
                let found =
                    if kind == "Size of" { &mut declarations.sizes } else { &mut declarations.offsets };
                found.insert(name.to_owned(), number);
            }
            let Some((_, constant)) = statement.split_once("pub const ") else { continue };
            let Some((name, rest)) = constant.split_once(':') else { continue };
            let Some((kind, value)) = rest.split_once('=') else { continue };
            if let Ok(value) = value.replace(' ', "").parse() {
                let (name, kind) = (name.trim().to_owned(), kind.trim().to_owned());
                declarations.values.insert(name.clone(), value);
                declarations.enumerators.entry(kind).or_default().push((name, value));
            }
        }
        declarations
    }

    pub(super) fn size(&self, structure: &str) -> Option<usize> {
        self.sizes.get(structure).copied()
    }

    pub(super) fn offset(&self, structure: &str, field: &str) -> Option<usize> {
        // bindgen changes names that are Rust's.
        let place = |field| self.offsets.get(&format!("{structure}::{field}")).copied();
        place(field.to_owned()).or_else(|| place(format!("{field}_")))
    }

    pub(super) fn value(&self, name: &str) -> Option<i64> {
        self.values.get(name).copied()
    }

    /// Returns the structure whose name starts with `prefix`.
    pub(super) fn structures_like(&self, prefix: &str) -> Option<&str> {
        self.sizes.keys().map(String::as_str).find(|name| name.starts_with(prefix))
    }

    /// Returns the enumerators of an enumeration, in order.
    pub(super) fn enumerators(&self, of: &str) -> Vec<(&str, i64)> {
        let all = self.enumerators.get(of).into_iter().flatten();
        all.map(|(name, value)| (name.as_str(), *value)).collect()
    }

    pub(super) fn all_enumerators(&self) -> impl Iterator<Item = (&str, i64)> {
        self.enumerators.values().flatten().map(|(name, value)| (name.as_str(), *value))
    }
}

/// Returns the name and the value of a macro that bindgen leaves out: `#define CU_DEVICE_CPU ((CUdevice)-1)`, or
/// `#define NCCL_CONFIG_UNDEF_INT INT_MIN`.
fn left_out_macro(line: &str) -> Option<(String, i64)> {
    let (name, value) = line.strip_prefix("#define ")?.split_once(char::is_whitespace)?;
    if value.trim() == "INT_MIN" {
        return Some((name.to_owned(), i64::from(i32::MIN)));
    }
    let (_, value) = value.trim().strip_prefix("((")?.strip_suffix(')')?.split_once(')')?;
    Some((name.to_owned(), value.trim().parse().ok()?))
}

/// Returns the kind, the name, and the number of a test such as
/// `["Offset of field: CUuuid_st::bytes"] [:: std :: mem :: offset_of ! (CUuuid_st , bytes) - 0usize]`.
fn layout_test(statement: &str) -> Option<(&str, &str, usize)> {
    let (_, rest) = statement.split_once("[\"")?;
    let (title, test) = rest.split_once("\"]")?;
    let number = test.rsplit_once("- ")?.1.trim().strip_suffix(']')?.trim().strip_suffix("usize")?;
    let kind = ["Size of", "Offset of field:"].into_iter().find(|kind| title.starts_with(kind))?;
    Some((kind, title[kind.len()..].trim(), number.parse().ok()?))
}
