//! Folders and files, as a file system stores them, and shards of a buffer in files.
//!
//! A path has `/` between its parts, and starts at the disk's own root, which is `""`.

mod folder;
mod recorded;
mod shard;

pub use folder::Folder;
pub use recorded::{Crash, RecordedDisk};
pub use shard::Shard;

/// A disk that all ranks share. Every error names the path.
///
/// What is written survives the end of the program, but it survives a crash of the machine only after [`Disk::sync`].
/// Until then, a crash can lose any of it, in any order.
pub trait Disk: Sync {
    /// Creates a folder. The folder that contains it must exist.
    ///
    /// # Errors
    /// Fails if there is such a file or folder already.
    fn create_folder(&self, path: &str) -> anyhow::Result<()>;

    /// Writes a file. Replaces the contents of an existing file.
    ///
    /// # Errors
    /// Fails if the folder doesn't exist, or if the disk is full.
    fn write(&self, path: &str, bytes: &[u8]) -> anyhow::Result<()>;

    /// Waits until a crash can't undo what has happened so far: for a file, its contents; for a folder, which files and
    /// folders it contains, and their names.
    ///
    /// # Errors
    /// Fails if there is no such file or folder.
    fn sync(&self, path: &str) -> anyhow::Result<()>;

    /// Renames a file or folder within its folder, in one indivisible step. Replaces a file or an empty folder that has
    /// the new name.
    ///
    /// # Errors
    /// Fails if there is no such file or folder, or if the new name is that of a folder with contents.
    fn rename(&self, from: &str, to: &str) -> anyhow::Result<()>;

    /// Removes a file, or a folder with its contents. If there is none, does nothing.
    ///
    /// # Errors
    /// Fails if the file system does.
    fn remove(&self, path: &str) -> anyhow::Result<()>;

    /// Returns the names of what is in a folder, in ascending order.
    ///
    /// # Errors
    /// Fails if there is no such folder.
    fn list(&self, folder: &str) -> anyhow::Result<Vec<String>>;

    /// Returns the contents of a file.
    ///
    /// # Errors
    /// Fails if there is no such file.
    fn read(&self, path: &str) -> anyhow::Result<Vec<u8>>;
}
