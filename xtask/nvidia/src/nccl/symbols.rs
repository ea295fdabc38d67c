//! Compares NCCL's functions with those that the virtual NCCL exports.

use anyhow::ensure;
use lab::tier::OLDEST_NCCL;
use virtual_cuda::EXPORTS;

use super::Version;
use crate::elf::Elf;
use crate::report::Comparison;

/// The functions that the virtual NCCL implements but the oldest NCCL for the course lacks. The course must not call
/// them.
const NEWER: [(&str, Version); 35] = [
    ("ncclAlltoAll", Version::new(2, 28)),
    ("ncclCommDeregister", Version::new(2, 19)),
    ("ncclCommGetUniqueId", Version::new(2, 29)),
    ("ncclCommGrow", Version::new(2, 29)),
    ("ncclCommInitRankScalable", Version::new(2, 23)),
    ("ncclCommMemStats", Version::new(2, 29)),
    ("ncclCommRegister", Version::new(2, 19)),
    ("ncclCommResume", Version::new(2, 29)),
    ("ncclCommRevoke", Version::new(2, 28)),
    ("ncclCommShrink", Version::new(2, 27)),
    ("ncclCommSuspend", Version::new(2, 29)),
    ("ncclCommWindowDeregister", Version::new(2, 27)),
    ("ncclCommWindowRegister", Version::new(2, 27)),
    ("ncclGather", Version::new(2, 28)),
    ("ncclGroupSimulateEnd", Version::new(2, 22)),
    ("ncclMemAlloc", Version::new(2, 19)),
    ("ncclMemFree", Version::new(2, 19)),
    ("ncclParamBind", Version::new(2, 30)),
    ("ncclParamGet", Version::new(2, 30)),
    ("ncclParamGetAllParameterKeys", Version::new(2, 30)),
    ("ncclParamGetI16", Version::new(2, 30)),
    ("ncclParamGetI32", Version::new(2, 30)),
    ("ncclParamGetI64", Version::new(2, 30)),
    ("ncclParamGetI8", Version::new(2, 30)),
    ("ncclParamGetParameter", Version::new(2, 30)),
    ("ncclParamGetStr", Version::new(2, 30)),
    ("ncclParamGetU16", Version::new(2, 30)),
    ("ncclParamGetU32", Version::new(2, 30)),
    ("ncclParamGetU64", Version::new(2, 30)),
    ("ncclParamGetU8", Version::new(2, 30)),
    ("ncclPutSignal", Version::new(2, 29)),
    ("ncclScatter", Version::new(2, 28)),
    ("ncclSignal", Version::new(2, 29)),
    ("ncclWaitSignal", Version::new(2, 29)),
    ("ncclWinGetUserPtr", Version::new(2, 29)),
];

pub(super) fn compare(comparison: &mut Comparison, elf: &Elf, version: Version) -> anyhow::Result<()> {
    let theirs = elf.exports("nccl");
    ensure!(theirs.contains("ncclGetVersion"), "the library exports no ncclGetVersion");
    for export in EXPORTS.iter().filter(|export| export.name.starts_with("nccl")) {
        let since = match NEWER.iter().find(|(name, _)| *name == export.name) {
            Some((_, since)) => *since,
            None => Version::read(&OLDEST_NCCL.to_string())?,
        };
        comparison.same(export.name, &theirs.contains(export.name), &(version >= since));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::NEWER;

    /// Newer functions, and the files that may name them: only checks that require such an NCCL call them.
    const REQUIRED: [(&str, &str); 12] = [
        ("ncclCommShrink", "crates/lab/src/elastic_comm.rs"),
        // Here, `Check::shrinks_communicators` requires it.
        ("ncclCommShrink", "crates/lab/src/check/definition.rs"),
        // `Check::puts_into_windows` requires these.
        ("ncclCommWindowDeregister", "crates/lab/src/one_sided_comm.rs"),
        ("ncclCommWindowRegister", "crates/lab/src/one_sided_comm.rs"),
        ("ncclMemAlloc", "crates/lab/src/one_sided_comm.rs"),
        ("ncclMemFree", "crates/lab/src/one_sided_comm.rs"),
        ("ncclPutSignal", "crates/lab/src/one_sided_comm.rs"),
        ("ncclSignal", "crates/lab/src/one_sided_comm.rs"),
        ("ncclWaitSignal", "crates/lab/src/one_sided_comm.rs"),
        // A budget recognizes their names among the recorded calls.
        ("ncclPutSignal", "crates/lab/src/budget/cost.rs"),
        ("ncclSignal", "crates/lab/src/budget/cost.rs"),
        ("ncclWaitSignal", "crates/lab/src/budget/cost.rs"),
    ];

    /// Returns the course's files that may call NCCL, relative to the repository, with their texts.
    fn callers() -> Vec<(PathBuf, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the repository");
        let mut files = Vec::new();
        let mut folders = vec![root.join("solutions"), root.join("modules"), root.join("crates/lab/src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder of the repository") {
                let path = entry.expect("an entry of that folder").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).expect("a file of the repository");
                    files.push((path.strip_prefix(root).expect("a path in it").to_owned(), text));
                }
            }
        }
        files
    }

    #[test]
    fn only_checks_that_require_it_call_a_newer_nccl() {
        let mut found = BTreeSet::new();
        for (file, text) in callers() {
            let named = NEWER.iter().filter(|(name, _)| text.contains(name));
            found.extend(named.map(|(name, _)| (*name, file.display().to_string())));
        }
        let listed = REQUIRED.iter().map(|(name, file)| (*name, (*file).to_owned())).collect();
        assert_eq!(found, listed);
    }
}
