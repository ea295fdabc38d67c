//! Reads the constants in Rust sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use virtual_gpu_nccl::Operator;

/// The crates whose constants have names in C.
const CRATES: [&str; 3] = ["virtual-cuda", "virtual-gpu", "virtual-gpu-nccl"];

/// A constant whose comment begins with its name in C, such as ``/// `CU_STREAM_NON_BLOCKING` ``.
pub(super) struct Constant {
    pub(super) c_name: String,
    pub(super) file: String,
    pub(super) value: i64,
}

/// Returns all such constants.
pub(super) fn constants(root: &Path) -> anyhow::Result<Vec<Constant>> {
    let mut constants = Vec::new();
    let mut folders: Vec<_> = CRATES.iter().map(|name| root.join("crates").join(name).join("src")).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            constants.extend(lines.windows(2).filter_map(|pair| constant(pair[0], pair[1], &file)));
        }
    }
    ensure!(constants.len() >= 10, "only {} constants were found", constants.len());
    Ok(constants)
}

/// Reads a comment and the declaration after it.
fn constant(comment: &str, declaration: &str, file: &str) -> Option<Constant> {
    let (_, rest) = comment.strip_prefix("///")?.split_once('`')?;
    // Two names mean a mask.
    let (c_name, after) = rest.split_once('`')?;
    let is_name = c_name.contains('_')
        && c_name.bytes().all(|it| it.is_ascii_uppercase() || it.is_ascii_digit() || it == b'_');
    let (_, rest) = declaration.split_once("const ")?;
    let value = number(rest.split_once("= ")?.1.strip_suffix(';')?)?;
    (is_name && !after.contains('`')).then(|| Constant {
        c_name: c_name.to_owned(),
        file: file.to_owned(),
        value,
    })
}

/// Reads a number in Rust, such as `0x07`, `0b010`, or `23_007`.
fn number(text: &str) -> Option<i64> {
    let text = text.replace('_', "");
    match (text.strip_prefix("0x"), text.strip_prefix("0b")) {
        (Some(digits), _) => i64::from_str_radix(digits, 16).ok(),
        (_, Some(digits)) => i64::from_str_radix(digits, 2).ok(),
        _ if text == "i32::MIN" => Some(i64::from(i32::MIN)),
        _ => text.parse().ok(),
    }
}

/// Returns the enumerators in a Rust source, with the values that they have.
pub(super) fn enumerators(text: &str) -> BTreeMap<&str, Vec<i64>> {
    let mut enumerators: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, value)) = line.trim().strip_suffix(',').and_then(|line| line.split_once(" = "))
            && let Some(value) = number(value)
        {
            enumerators.entry(name).or_default().push(value);
        }
    }
    enumerators
}

/// Returns an operator's name in `nccl.h`.
pub(super) fn c_name(operator: Operator) -> &'static str {
    match operator {
        Operator::Sum => "ncclSum",
        Operator::Product => "ncclProd",
        Operator::Max => "ncclMax",
        Operator::Min => "ncclMin",
        Operator::Average => "ncclAvg",
        Operator::PreMulSum => "a user-defined operator",
    }
}
