//! A disk in a folder of the real file system.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

use super::Disk;

/// A temporary folder of the file system. It is removed when this value is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates an empty folder among the system's temporary files.
    ///
    /// # Errors
    /// Returns the file system's error.
    pub fn temporary() -> anyhow::Result<Self> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let name = format!("ncclings_{}_{}", std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).with_context(|| format!("can't create {}", path.display()))?;
        Ok(Self(path))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover in the temporary folder is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Disk for Folder {
    fn create_folder(&self, path: &str) -> anyhow::Result<()> {
        fs::create_dir(self.at(path)).with_context(|| format!("can't create the folder {path}"))
    }

    fn write(&self, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
        fs::write(self.at(path), bytes).with_context(|| format!("can't write {path}"))
    }

    fn sync(&self, path: &str) -> anyhow::Result<()> {
        // On Linux, a folder is opened and synchronized like a file.
        let synced = fs::File::open(self.at(path)).and_then(|file| file.sync_all());
        synced.with_context(|| format!("can't sync {path:?}"))
    }

    fn rename(&self, from: &str, to: &str) -> anyhow::Result<()> {
        fs::rename(self.at(from), self.at(to)).with_context(|| format!("can't rename {from} to {to}"))
    }

    fn remove(&self, path: &str) -> anyhow::Result<()> {
        match remove(&self.at(path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("can't remove {path}"))
            }
            _ => Ok(()),
        }
    }

    fn list(&self, folder: &str) -> anyhow::Result<Vec<String>> {
        let names = || -> io::Result<Vec<String>> {
            fs::read_dir(self.at(folder))?.map(|entry| Ok(entry?.file_name().display().to_string())).collect()
        };
        let mut names = names().with_context(|| format!("can't list {folder:?}"))?;
        names.sort();
        Ok(names)
    }

    fn read(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        fs::read(self.at(path)).with_context(|| format!("can't read {path}"))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}
