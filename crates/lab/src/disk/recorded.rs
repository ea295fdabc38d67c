//! A disk in memory that records its operations, and replays crashes of the machine.
//!
//! A file system may reorder what it writes, and may write a part of it: for each operation, `fsync(2)` states what it
//! makes permanent, and nothing else is promised. How far real file systems make use of that is the subject of T.
//! Pillai and others, "All File Systems Are Not Created Equal", OSDI 2014. Like their tool, this disk records one run,
//! and then constructs the states in which a crash may have left it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail, ensure};

use super::Disk;

/// A disk in memory that records each operation.
#[derive(Debug, Default)]
pub struct RecordedDisk(Mutex<Recording>);

/// The number of the root among the nodes.
const ROOT: usize = 0;

#[derive(Clone, Debug)]
enum Node {
    /// The nodes in a folder, by name.
    Folder(BTreeMap<String, usize>),
    File(Vec<u8>),
}

/// A change that a crash can lose until its node is synchronized.
#[derive(Clone, Debug)]
enum Change {
    /// The names in a folder, with their new nodes.
    Names {
        folder: usize,
        names: Vec<(String, Option<usize>)>,
    },
    Contents {
        file: usize,
        bytes: Vec<u8>,
    },
}

impl Change {
    fn node(&self) -> usize {
        match self {
            Self::Names { folder: node, .. } | Self::Contents { file: node, .. } => *node,
        }
    }
}

#[derive(Debug)]
struct Operation {
    /// The operation in words, as in `rename a to b`.
    text: String,
    /// Its changes, each with what is lost in a crash and what would have prevented that.
    changes: Vec<(Change, Loss)>,
    /// The node whose earlier changes can't be lost any more.
    synced: Option<usize>,
}

/// What is lost with a change, and what a sync of would have kept it.
#[derive(Clone, Debug)]
struct Loss {
    what: String,
    unsynced: String,
}

/// How much of a change a crash leaves. Only contents can be lost in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    All,
    AllButOneByte,
    Half,
    OneByte,
    Nothing,
}

impl Left {
    /// Returns how many of `len` bytes are left.
    fn of(self, len: usize) -> usize {
        match self {
            Self::All => len,
            Self::AllButOneByte => len.saturating_sub(1),
            Self::Half => len / 2,
            Self::OneByte => len.saturating_sub(1).min(1),
            Self::Nothing => 0,
        }
    }
}

#[derive(Debug)]
struct Recording {
    nodes: Vec<Node>,
    operations: Vec<Operation>,
}

impl Default for Recording {
    fn default() -> Self {
        Self { nodes: vec![Node::Folder(BTreeMap::new())], operations: Vec::new() }
    }
}

/// A state in which a crash may leave a disk.
#[derive(Debug)]
pub struct Crash {
    /// The number of operations before the crash.
    pub operations: usize,
    /// What has happened, as in ``a crash after `write a/b`, which loses the contents of a/b``.
    pub text: String,
    /// Whether nothing is lost, as if only the program had ended.
    pub is_lossless: bool,
    /// If one change is lost, what a sync of would have kept it, as in `the file a/b`.
    pub unsynced: Option<String>,
    /// All files and folders, by path. A folder has no contents.
    pub contents: BTreeMap<String, Option<Vec<u8>>>,
}

impl Crash {
    /// Returns the disk after the crash.
    pub fn disk(&self) -> RecordedDisk {
        let mut recording = Recording::default();
        for (path, contents) in &self.contents {
            recording.nodes.push(contents.clone().map_or_else(|| Node::Folder(BTreeMap::new()), Node::File));
            let node = recording.nodes.len() - 1;
            // A folder's path comes before those of its contents.
            if let Ok((folder, name)) = recording.parent(path) {
                recording.apply(&Change::Names { folder, names: vec![(name, Some(node))] });
            }
        }
        RecordedDisk(Mutex::new(recording))
    }
}

impl RecordedDisk {
    /// Returns the number of operations so far that changed or synchronized something.
    pub fn operations(&self) -> usize {
        self.recording().operations.len()
    }

    /// Returns the states in which a crash may leave the disk, after any number of operations from `first` on: nothing is
    /// lost that was not synchronized, or one change, or all, or all but one. A file's contents can also be lost in part.
    /// The states with the smallest loss come first for each number of operations.
    pub fn crashes(&self, first: usize) -> Vec<Crash> {
        let recording = self.recording();
        (first..=recording.operations.len())
            .flat_map(|operations| recording.crashes_after(operations))
            .collect()
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recording {
    fn find(&self, path: &str) -> Option<usize> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(ROOT, |node, name| match &self.nodes[node] {
            Node::Folder(names) => names.get(name).copied(),
            Node::File(_) => None,
        })
    }

    fn existing(&self, path: &str) -> anyhow::Result<usize> {
        self.find(path).with_context(|| {
            let renamed = self.operations.iter().rev().find_map(|operation| {
                operation.text.strip_prefix("rename ")?.strip_prefix(path)?.strip_prefix(" to ")
            });
            let renamed = renamed.map(|to| format!(" any more: it was renamed to {to}"));
            format!("there is no file or folder {path:?}{}", renamed.unwrap_or_default())
        })
    }

    /// Returns the folder that contains a path, and the last part of the path.
    fn parent(&self, path: &str) -> anyhow::Result<(usize, String)> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let node = self.existing(folder)?;
        ensure!(matches!(self.nodes[node], Node::Folder(_)), "{folder} is not a folder");
        ensure!(!name.is_empty(), "{path:?} has no name");
        Ok((node, name.to_owned()))
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Names { folder, names } => {
                let Node::Folder(entries) = &mut self.nodes[*folder] else { return };
                for (name, node) in names {
                    match node {
                        Some(node) => entries.insert(name.clone(), *node),
                        None => entries.remove(name),
                    };
                }
            }
            Change::Contents { file, bytes } => self.nodes[*file] = Node::File(bytes.clone()),
        }
    }

    fn record(&mut self, text: String, changes: Vec<(Change, Loss)>) {
        changes.iter().for_each(|(change, _)| self.apply(change));
        self.operations.push(Operation { text, changes, synced: None });
    }

    /// Gives a path a new node.
    fn create(&mut self, path: &str, node: Node) -> anyhow::Result<(usize, (Change, Loss))> {
        let (folder, name) = self.parent(path)?;
        self.nodes.push(node);
        let node = self.nodes.len() - 1;
        let change = Change::Names { folder, names: vec![(name, Some(node))] };
        Ok((node, (change, names_lost(path, format!("the name {path}")))))
    }

    fn is_empty_folder(&self, node: usize) -> bool {
        matches!(&self.nodes[node], Node::Folder(names) if names.is_empty())
    }

    /// Returns the changes by the first operations, and for each of them whether a crash can lose it.
    fn changes(&self, operations: usize) -> Vec<(&Change, &Loss, bool)> {
        let done = &self.operations[..operations];
        let changes = done.iter().enumerate().flat_map(|(at, operation)| {
            operation.changes.iter().map(move |(change, loss)| {
                let is_synced = done[at..].iter().any(|operation| operation.synced == Some(change.node()));
                (change, loss, !is_synced)
            })
        });
        changes.collect()
    }

    fn crashes_after(&self, operations: usize) -> Vec<Crash> {
        let changes = self.changes(operations);
        let with = |chosen: usize, left: Left, others: Left| -> Vec<Left> {
            let of = |index: usize, pending: bool| match pending {
                false => Left::All,
                true if index == chosen => left,
                true => others,
            };
            changes.iter().enumerate().map(|(index, (.., pending))| of(index, *pending)).collect()
        };
        let pending = || changes.iter().enumerate().filter(|(_, (.., pending))| *pending);
        let is_contents = |change: &Change| matches!(change, Change::Contents { .. });
        let mut states = vec![vec![Left::All; changes.len()]];
        states.extend(pending().map(|(index, _)| with(index, Left::Nothing, Left::All)));
        for (index, _) in pending().filter(|(_, (change, ..))| is_contents(change)) {
            let parts = [Left::AllButOneByte, Left::Half, Left::OneByte];
            states.extend(parts.map(|left| with(index, left, Left::All)));
        }
        states.push(with(changes.len(), Left::Nothing, Left::Nothing));
        states.extend(pending().map(|(index, _)| with(index, Left::All, Left::Nothing)));
        states.iter().map(|left| self.crash(operations, &changes, left)).collect()
    }

    /// Returns the state with this much left of each change.
    fn crash(&self, operations: usize, changes: &[(&Change, &Loss, bool)], left: &[Left]) -> Crash {
        let mut after = Self::default();
        after.nodes.extend(self.nodes[1..].iter().map(|node| match node {
            Node::Folder(_) => Node::Folder(BTreeMap::new()),
            Node::File(_) => Node::File(Vec::new()),
        }));
        let mut lost = Vec::new();
        for ((change, loss, _), &left) in changes.iter().zip(left) {
            match change {
                Change::Names { .. } if left != Left::All => {}
                Change::Names { .. } => after.apply(change),
                Change::Contents { file, bytes } => {
                    after.nodes[*file] = Node::File(bytes[..left.of(bytes.len())].to_vec());
                }
            }
            match left {
                Left::All => {}
                Left::Nothing => lost.push((loss.what.clone(), loss)),
                _ => lost.push((format!("a part of {}", loss.what), loss)),
            }
        }
        let last = self.operations[..operations].last().map_or("the start", |operation| &operation.text);
        let what = match &*lost {
            [] => String::new(),
            [(what, _)] => format!(", which loses {what}"),
            several if several.len() == changes.iter().filter(|(.., pending)| *pending).count() => {
                ", which loses everything that was not synced".to_owned()
            }
            several => format!(", which loses {} changes that were not synced", several.len()),
        };
        let unsynced = match &*lost {
            [(_, loss)] => Some(loss.unsynced.clone()),
            _ => None,
        };
        let (text, contents) = (format!("a crash after `{last}`{what}"), after.contents());
        Crash { operations, text, is_lossless: lost.is_empty(), unsynced, contents }
    }

    fn contents(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let (mut contents, mut folders) = (BTreeMap::new(), vec![(String::new(), ROOT)]);
        while let Some((prefix, folder)) = folders.pop() {
            let Node::Folder(names) = &self.nodes[folder] else { continue };
            for (name, &node) in names {
                let path = format!("{prefix}{name}");
                match &self.nodes[node] {
                    Node::File(bytes) => contents.insert(path, Some(bytes.clone())),
                    Node::Folder(_) => {
                        folders.push((format!("{path}/"), node));
                        contents.insert(path, None)
                    }
                };
            }
        }
        contents
    }
}

/// Describes the loss of a change of a folder's names.
fn names_lost(path: &str, what: String) -> Loss {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let unsynced =
        if folder.is_empty() { "the root, \"\"".to_owned() } else { format!("the folder {folder}") };
    Loss { what, unsynced }
}

impl Disk for RecordedDisk {
    fn create_folder(&self, path: &str) -> anyhow::Result<()> {
        let mut recording = self.recording();
        ensure!(recording.find(path).is_none(), "can't create the folder {path}: it exists already");
        let (_, change) = recording.create(path, Node::Folder(BTreeMap::new()))?;
        recording.record(format!("create the folder {path}"), vec![change]);
        Ok(())
    }

    fn write(&self, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let mut recording = self.recording();
        let mut changes = Vec::new();
        let file = match recording.find(path) {
            Some(file) => file,
            None => {
                let created = recording.create(path, Node::File(Vec::new()));
                let (file, change) = created.with_context(|| format!("can't write {path}"))?;
                changes.push(change);
                file
            }
        };
        ensure!(matches!(recording.nodes[file], Node::File(_)), "can't write {path}: it is a folder");
        let loss = Loss { what: format!("the contents of {path}"), unsynced: format!("the file {path}") };
        changes.push((Change::Contents { file, bytes: bytes.to_vec() }, loss));
        recording.record(format!("write {path}"), changes);
        Ok(())
    }

    fn sync(&self, path: &str) -> anyhow::Result<()> {
        let mut recording = self.recording();
        let node = recording.existing(path).with_context(|| format!("can't sync {path:?}"))?;
        let text = format!("sync {path:?}");
        recording.operations.push(Operation { text, changes: Vec::new(), synced: Some(node) });
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> anyhow::Result<()> {
        let mut recording = self.recording();
        let text = format!("rename {from} to {to}");
        let node = recording.existing(from).with_context(|| format!("can't {text}"))?;
        let ((folder, old), (to_folder, new)) = (recording.parent(from)?, recording.parent(to)?);
        if folder != to_folder {
            bail!("can't {text}: this disk renames only within a folder");
        }
        if let Some(target) = recording.find(to) {
            let both_files =
                [node, target].iter().all(|&node| matches!(recording.nodes[node], Node::File(_)));
            ensure!(both_files || recording.is_empty_folder(target), "can't {text}: {to} exists already");
        }
        let change = Change::Names { folder, names: vec![(old, None), (new, Some(node))] };
        recording.record(text, vec![(change, names_lost(to, format!("the rename of {from} to {to}")))]);
        Ok(())
    }

    fn remove(&self, path: &str) -> anyhow::Result<()> {
        let mut recording = self.recording();
        if recording.find(path).is_some() {
            let (folder, name) = recording.parent(path)?;
            let change = Change::Names { folder, names: vec![(name, None)] };
            recording.record(
                format!("remove {path}"),
                vec![(change, names_lost(path, format!("the removal of {path}")))],
            );
        }
        Ok(())
    }

    fn list(&self, folder: &str) -> anyhow::Result<Vec<String>> {
        let recording = self.recording();
        match &recording.nodes
            [recording.existing(folder).with_context(|| format!("can't list {folder:?}"))?]
        {
            Node::Folder(names) => Ok(names.keys().cloned().collect()),
            Node::File(_) => bail!("can't list {folder}: it is a file"),
        }
    }

    fn read(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let recording = self.recording();
        match &recording.nodes[recording.existing(path).with_context(|| format!("can't read {path}"))?] {
            Node::File(bytes) => Ok(bytes.clone()),
            Node::Folder(_) => bail!("can't read {path}: it is a folder"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Folder;

    /// Replaces a file safely, except for what `synced` leaves out.
    fn replace(disk: &dyn Disk, contents: &[u8], synced: [bool; 2]) {
        disk.write("new", contents).unwrap();
        if synced[0] {
            disk.sync("new").unwrap();
        }
        disk.rename("new", "file").unwrap();
        if synced[1] {
            disk.sync("").unwrap();
        }
    }

    /// Returns the states of the file after a crash while `b"newer"` replaces `b"old"`, and after that.
    fn states(synced: [bool; 2]) -> [Vec<Option<Vec<u8>>>; 2] {
        let disk = RecordedDisk::default();
        replace(&disk, b"old", [true; 2]);
        let first = disk.operations();
        replace(&disk, b"newer", synced);
        let end = disk.operations();
        let (before, after): (Vec<Crash>, Vec<Crash>) =
            disk.crashes(first).into_iter().partition(|crash| crash.operations < end);
        [before, after].map(|crashes| {
            let mut files: Vec<_> = crashes.iter().map(|crash| crash.disk().read("file").ok()).collect();
            files.sort();
            files.dedup();
            files
        })
    }

    #[test]
    fn a_file_that_is_synced_and_renamed_is_old_or_new() {
        let (old, new) = (Some(b"old".to_vec()), Some(b"newer".to_vec()));
        assert_eq!(states([true, true]), [vec![new.clone(), old.clone()], vec![new.clone()]]);
        assert_eq!(states([true, false]), [vec![old.clone()], vec![new.clone(), old]]);
    }

    #[test]
    fn a_file_that_is_not_synced_can_be_empty_or_torn_after_its_rename() {
        let [_, after] = states([false, true]);
        let texts: Vec<_> = after.iter().flatten().map(|bytes| String::from_utf8_lossy(bytes)).collect();
        assert_eq!(texts, ["", "n", "ne", "newe", "newer"]);
    }

    #[test]
    fn a_crash_names_what_is_lost_and_what_was_not_synced() {
        let disk = RecordedDisk::default();
        disk.create_folder("a").unwrap();
        disk.sync("").unwrap();
        disk.write("a/b", b"12").unwrap();
        disk.sync("a/b").unwrap();
        let crashes = disk.crashes(4);
        assert_eq!(crashes[0].text, "a crash after `sync \"a/b\"`");
        assert_eq!(crashes[1].text, "a crash after `sync \"a/b\"`, which loses the name a/b");
        assert_eq!(crashes[1].unsynced.as_deref(), Some("the folder a"));
        assert_eq!(crashes[1].disk().list("a").unwrap(), [""; 0]);
    }

    /// Does what both kinds of disks must do alike.
    fn use_it(disk: &dyn Disk) -> Vec<String> {
        let mut seen = Vec::new();
        let mut note =
            |result: anyhow::Result<()>| seen.push(if result.is_ok() { "ok" } else { "error" }.to_owned());
        note(disk.create_folder("a"));
        note(disk.create_folder("a"));
        note(disk.create_folder("x/y"));
        note(disk.write("a/file", b"1"));
        note(disk.write("x/file", b"1"));
        note(disk.write("a", b"1"));
        note(disk.sync("a/file"));
        note(disk.sync("a/other"));
        note(disk.rename("a/other", "a/file"));
        note(disk.create_folder("b"));
        note(disk.rename("a", "b"));
        note(disk.write("b/second", b"22"));
        note(disk.create_folder("a"));
        note(disk.rename("a", "b"));
        note(disk.rename("b/file", "b/second"));
        note(disk.remove("nothing"));
        note(disk.read("b").map(drop));
        note(disk.list("b/second").map(drop));
        seen.extend(disk.list("b").unwrap());
        seen.push(String::from_utf8(disk.read("b/second").unwrap()).unwrap());
        disk.remove("b").unwrap();
        seen.extend(disk.list("").unwrap());
        seen
    }

    #[test]
    fn it_behaves_like_a_folder_of_the_file_system() {
        let expected =
            "ok error error ok error error ok error error ok ok ok ok error ok ok error error second 1 a";
        assert_eq!(use_it(&Folder::temporary().unwrap()).join(" "), expected);
        assert_eq!(use_it(&RecordedDisk::default()).join(" "), expected);
    }
}
