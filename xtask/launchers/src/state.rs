//! The folder for configurations, scripts, and logs, which exists only while this program runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A folder below the target folder. Dropping it deletes it.
pub(crate) struct State {
    folder: PathBuf,
}

impl State {
    pub(crate) fn create() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("can't find this executable")?;
        let target = own.ancestors().nth(2).context("this executable is not in a target folder")?;
        let folder = target.join("launchers").join(std::process::id().to_string());
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { folder })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Creates an empty subfolder, even if there was one of this name. Returns its path.
    pub(crate) fn fresh_folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Writes a file, and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Writes an executable script, and returns its path.
    pub(crate) fn script(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.write(name, text)?;
        allow(&path, 0o755)?;
        Ok(path)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        // It is empty unless another run has its state there.
        let _ = self.folder.parent().map(fs::remove_dir);
    }
}

/// Sets a file's permissions.
pub(crate) fn allow(path: &Path, mode: u32) -> anyhow::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(|| path.display().to_string())
}
