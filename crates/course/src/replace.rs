//! Writes files atomically: completely or not at all.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Context;

/// Writes a file completely or not at all, even if the process is interrupted.
///
/// # Errors
/// Fails if its folder can't be created, or if the file can't be written.
pub fn replace(file: &Path, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let said = || format!("can't write {}", file.display());
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).with_context(said)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let new = folder.join(format!(".{name}.{}", std::process::id()));
    let written = fs::File::create(&new)
        .and_then(|mut to| to.write_all(content.as_ref()).and_then(|()| to.sync_all()))
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        // The file may not exist.
        let _ = fs::remove_file(&new);
    }
    written.with_context(said)
}
