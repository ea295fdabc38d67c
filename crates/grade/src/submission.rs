//! A student's submission: the files that count, read from a folder, an archive, or a Git repository. Nothing of it is
//! written to the disk or run while it is read, except that Git clones a repository.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use course::syllabus::Course;

/// The most bytes of one file. The longest file of the course has a tenth of it.
const MOST_FILE_BYTES: u64 = 1 << 20;
/// The most files of a submission. A copy of the course has about 1,600.
const MOST_FILES: usize = 20_000;
/// The most bytes that an archive may have once it is unpacked.
const MOST_ARCHIVE_BYTES: u64 = 2 << 30;

/// A student's submission.
pub(crate) struct Submission {
    /// The student's name.
    pub(crate) name: String,
    /// The sources below `modules/`, by path from the root of the course.
    pub(crate) sources: BTreeMap<PathBuf, Entry>,
    /// How many hints the student has seen, by exercise, if the submission says so.
    pub(crate) hints: BTreeMap<String, usize>,
    /// The files that differ from the course's and that grading doesn't use.
    pub(crate) unused: Vec<String>,
}

/// A file of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Its content.
    Text(Vec<u8>),
    /// Why it is not read.
    Refused(String),
}

/// The files of a submission that matter, by path from the root of the course.
type Files = BTreeMap<PathBuf, Entry>;

/// Reads the submissions in all places.
///
/// # Errors
/// Fails if a place has none, or if two students have the same name.
pub(crate) fn read_all(
    root: &Path,
    course: &Course,
    places: &[String],
    scratch: &Path,
) -> anyhow::Result<Vec<Submission>> {
    let mut submissions: BTreeMap<String, (String, Submission)> = BTreeMap::new();
    for place in places {
        for (name, place, files) in read_place(place, scratch).with_context(|| place.clone())? {
            let submission = Submission::new(root, course, name.clone(), files);
            if let Some((other, _)) = submissions.insert(name.clone(), (place.clone(), submission)) {
                bail!("{other} and {place}: two students have the same name, {name}; rename one");
            }
        }
    }
    Ok(submissions.into_values().map(|(_, submission)| submission).collect())
}

/// Returns the name, the place, and the files of each submission in a place.
fn read_place(place: &str, scratch: &Path) -> anyhow::Result<Vec<(String, String, Files)>> {
    if place.contains("://") || place.starts_with("git@") {
        let name = name_of(place.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or(place));
        let folder = scratch.join("clones").join(&name);
        clone(place, &folder)?;
        return Ok(vec![(name, place.to_owned(), read_folder(&folder)?)]);
    }
    let path = Path::new(place);
    let last = path.canonicalize().context("can't be read")?;
    let name = name_of(&last.file_name().unwrap_or_default().to_string_lossy());
    if path.is_file() {
        return Ok(vec![(name, place.to_owned(), read_archive(path)?)]);
    }
    if path.join("modules").is_dir() {
        return Ok(vec![(name, place.to_owned(), read_folder(path)?)]);
    }
    let mut submissions = Vec::new();
    let mut entries: Vec<PathBuf> =
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<_>>()?;
    entries.sort();
    for entry in entries.iter().filter(|entry| entry.join("modules").is_dir() || kind(entry).is_some()) {
        let place = entry.display().to_string();
        submissions.extend(read_place(&place, scratch).with_context(|| place.clone())?);
    }
    ensure!(
        !submissions.is_empty(),
        "has no submission: neither a folder `modules`, nor folders or .tar.gz, .tar, and .zip files with one"
    );
    Ok(submissions)
}

/// Returns a student's name: the name of the place without what shows that it is an archive or a repository.
fn name_of(place: &str) -> String {
    let ends = [".tar.gz", ".tgz", ".tar", ".zip", ".git"];
    let name = ends.iter().find_map(|end| place.strip_suffix(end)).unwrap_or(place);
    // It becomes part of a file's name and of a command.
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_.@+ ".contains(letter);
    let name: String = name.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    if name.trim_matches('.').is_empty() { "student".to_owned() } else { name }
}

fn clone(url: &str, folder: &Path) -> anyhow::Result<()> {
    let output = Command::new("git")
        // Links are then files with the link's text, and no transport runs a command from the URL.
        .args(["-c", "core.symlinks=false", "-c", "protocol.ext.allow=never"])
        .args(["clone", "--quiet", "--depth", "1", "--no-recurse-submodules", "--"])
        .arg(url)
        .arg(folder)
        .env("GIT_TERMINAL_PROMPT", "0")
        .output()
        .context("can't run git")?;
    ensure!(
        output.status.success(),
        "git can't clone it: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// The kinds of archives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    TarGz,
    Tar,
    Zip,
}

fn kind(file: &Path) -> Option<Kind> {
    let name = file.file_name().and_then(OsStr::to_str)?.to_lowercase();
    let kinds = [(".tar.gz", Kind::TarGz), (".tgz", Kind::TarGz), (".tar", Kind::Tar), (".zip", Kind::Zip)];
    kinds.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, kind)| kind)
}

/// Returns whether grading looks at a file of the course.
fn matters(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let is_of_modules = text.starts_with("modules/") && !text.ends_with(".md");
    is_of_modules
        || text.starts_with("tests/") && !text.starts_with("tests/mistakes/")
        || ["Cargo.toml", "build.rs", ".cargo/config.toml", ".course/progress.json"].contains(&&*text)
}

/// Returns the part of a path from `modules/`, `tests/`, or a file of the course's root on. An archive may have one folder
/// around the course.
fn below_root(path: &Path) -> Option<PathBuf> {
    let plain: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
    if plain.components().any(|part| !matches!(part, Component::Normal(_))) {
        return None;
    }
    let mut parts = plain.components();
    let candidates = [plain.clone(), {
        parts.next();
        parts.as_path().to_owned()
    }];
    candidates.into_iter().find(|path| matters(path))
}

fn read_bounded(from: impl Read, size: u64) -> anyhow::Result<Entry> {
    if size > MOST_FILE_BYTES {
        return Ok(Entry::Refused(format!("it has {size} bytes, and at most {MOST_FILE_BYTES} are read")));
    }
    let mut text = Vec::new();
    from.take(MOST_FILE_BYTES).read_to_end(&mut text)?;
    Ok(Entry::Text(text))
}

/// Reads an archive without unpacking it.
fn read_archive(file: &Path) -> anyhow::Result<Files> {
    let open = || File::open(file).context("can't be opened");
    let files = match kind(file).context("is neither a folder nor a .tar.gz, .tar, or .zip file")? {
        Kind::TarGz => read_tar(flate2::read::GzDecoder::new(open()?)),
        Kind::Tar => read_tar(open()?),
        Kind::Zip => read_zip(&fs::read(file).context("can't be read")?),
    };
    let files = files.context("is not an archive that can be read")?;
    ensure!(files.keys().any(|path| path.starts_with("modules")), "has no folder `modules`");
    Ok(files)
}

fn read_tar(from: impl Read) -> anyhow::Result<Files> {
    let mut files = Files::new();
    let mut archive = tar::Archive::new(from.take(MOST_ARCHIVE_BYTES));
    for (count, entry) in archive.entries()?.enumerate() {
        ensure!(count < MOST_FILES, "it has more than {MOST_FILES} files");
        let entry = entry?;
        let Some(path) = below_root(&entry.path()?) else { continue };
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            continue;
        }
        let read = match kind.is_file() {
            true => {
                let size = entry.size();
                read_bounded(entry, size)?
            }
            false => Entry::Refused("it is a link or a device, and not a file".to_owned()),
        };
        files.insert(path, read);
    }
    Ok(files)
}

fn read_zip(bytes: &[u8]) -> anyhow::Result<Files> {
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes))?;
    ensure!(archive.len() <= MOST_FILES, "it has more than {MOST_FILES} files");
    let mut files = Files::new();
    for index in 0..archive.len() {
        let entry = archive.by_index(index)?;
        let Some(path) = entry.enclosed_name().and_then(|path| below_root(&path)) else { continue };
        if entry.is_dir() {
            continue;
        }
        let read = match entry.is_symlink() {
            true => Entry::Refused("it is a link, and not a file".to_owned()),
            false => {
                let size = entry.size();
                read_bounded(entry, size)?
            }
        };
        files.insert(path, read);
    }
    Ok(files)
}

/// Reads a copy of the course.
fn read_folder(root: &Path) -> anyhow::Result<Files> {
    let mut files = Files::new();
    let mut open: Vec<PathBuf> =
        ["modules", "tests", "Cargo.toml", "build.rs", ".cargo/config.toml", ".course/progress.json"]
            .map(|name| root.join(name))
            .to_vec();
    while let Some(path) = open.pop() {
        // Links are not followed, so nothing outside the submission is read.
        let Ok(metadata) = path.symlink_metadata() else { continue };
        let name = path.strip_prefix(root)?.to_owned();
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).with_context(|| format!("can't read {}", path.display()))?;
            for entry in entries {
                open.push(entry?.path());
            }
        } else if metadata.is_symlink() {
            files.insert(name, Entry::Refused("it is a link, and not a file".to_owned()));
        } else if matters(&name) {
            let read = match metadata.is_file() {
                true => File::open(&path)
                    .map_err(anyhow::Error::from)
                    .and_then(|file| read_bounded(file, metadata.len())),
                false => Ok(Entry::Refused("it is not a file".to_owned())),
            };
            files.insert(name, read.with_context(|| path.display().to_string())?);
        }
        ensure!(files.len() < MOST_FILES, "it has more than {MOST_FILES} files");
    }
    Ok(files)
}

impl Submission {
    fn new(root: &Path, course: &Course, name: String, files: Files) -> Self {
        let is_exercise = |path: &Path| {
            course.exercises.iter().any(|exercise| path == Path::new("modules").join(&exercise.file))
        };
        let mut submission =
            Self { name, sources: BTreeMap::new(), hints: BTreeMap::new(), unused: Vec::new() };
        for (path, entry) in files {
            if path == Path::new(".course/progress.json") {
                submission.hints = hints(&entry);
                continue;
            }
            let is_of_course = root.join(&path).is_file();
            let is_source = path.extension() == Some(OsStr::new("rs"))
                && path.components().nth(2) == Some(Component::Normal(OsStr::new("src")));
            let is_program = path.components().nth(3) == Some(Component::Normal(OsStr::new("bin")));
            if is_exercise(&path) || is_source && !is_of_course && !is_program {
                submission.sources.insert(path, entry);
            } else if !is_same(root, &path, &entry) {
                submission.unused.push(path.display().to_string());
            }
        }
        submission
    }
}

/// Returns whether the course has the same file.
fn is_same(root: &Path, path: &Path, entry: &Entry) -> bool {
    matches!(entry, Entry::Text(text) if fs::read(root.join(path)).is_ok_and(|own| own == *text))
}

/// Reads the hints from a student's progress. A damaged file counts as no hints.
fn hints(progress: &Entry) -> BTreeMap<String, usize> {
    let Entry::Text(text) = progress else { return BTreeMap::new() };
    let known: BTreeMap<String, serde_json::Value> = serde_json::from_slice(text).unwrap_or_default();
    let hints = |known: &serde_json::Value| known.get("hints")?.as_u64()?.try_into().ok();
    known.iter().filter_map(|(id, known)| Some((id.clone(), hints(known)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_the_course() {
        let below = |path: &str| below_root(Path::new(path)).map(|path| path.display().to_string());
        for (path, expected) in [
            ("modules/01_init/src/devices.rs", Some("modules/01_init/src/devices.rs")),
            ("./modules/01_init/src/devices.rs", Some("modules/01_init/src/devices.rs")),
            ("ann-main/modules/01_init/src/devices.rs", Some("modules/01_init/src/devices.rs")),
            ("ann/tests/01_init/mod.rs", Some("tests/01_init/mod.rs")),
            ("ann/Cargo.toml", Some("Cargo.toml")),
            ("ann/crates/lab/src/lib.rs", None),
            ("../modules/01_init/src/devices.rs", None),
            ("/modules/01_init/src/devices.rs", None),
            ("ann/../modules/01_init/src/devices.rs", None),
        ] {
            assert_eq!(below(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn a_name_is_safe_in_a_path() {
        for (place, expected) in [
            ("ann.tar.gz", "ann"),
            ("ncclings-bob.git", "ncclings-bob"),
            ("Zoë O'Hara", "Zoë O_Hara"),
            ("..", "student"),
        ] {
            assert_eq!(name_of(place), expected);
        }
    }

    #[test]
    fn an_archive_is_read_without_its_links_and_its_giants() {
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |path: &str, kind, content: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(content.len() as u64);
            if kind == tar::EntryType::Symlink {
                header.set_link_name("/etc/passwd").unwrap();
            }
            archive.append_data(&mut header, path, content).unwrap();
        };
        add("a/modules/01_init/src/devices.rs", tar::EntryType::Regular, b"fn f() {}");
        add("a/modules/01_init/src/buffers.rs", tar::EntryType::Symlink, b"");
        add("a/modules/01_init/src/kernel.rs", tar::EntryType::Regular, &vec![b' '; (1 << 20) + 1]);
        add("a/solutions/01_init/src/kernel.rs", tar::EntryType::Regular, b"");
        let bytes = archive.into_inner().unwrap();
        let files = read_tar(&bytes[..]).unwrap();
        let entry = |name: &str| &files[&Path::new("modules/01_init/src").join(name)];
        assert_eq!(files.len(), 3);
        assert_eq!(*entry("devices.rs"), Entry::Text(b"fn f() {}".to_vec()));
        assert!(matches!(entry("buffers.rs"), Entry::Refused(why) if why.contains("link")));
        assert!(matches!(entry("kernel.rs"), Entry::Refused(why) if why.contains("bytes")));
        assert!(read_tar(&bytes[..700]).is_err());
    }

    #[test]
    fn hints_are_counted_even_if_there_are_none() {
        let of = |text: &str| hints(&Entry::Text(text.as_bytes().to_vec()));
        assert_eq!(
            of(r#"{"init/devices": {"hints": 2}, "init/kernel": {}}"#),
            [("init/devices".to_owned(), 2)].into()
        );
        assert!(of("damaged").is_empty());
    }
}
