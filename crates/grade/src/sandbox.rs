//! Where answers are compiled and run: bubblewrap gives each process its own view of the machine.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{bail, ensure};

/// The most bytes in `/tmp`, and the most in `/dev/shm`, which NCCL uses between processes.
const TEMPORARY_BYTES: u64 = 256 << 20;
/// The largest file that a process may write.
const MOST_FILE_BYTES: u64 = 1 << 30;

/// What every program needs to be able to read.
const SYSTEM: [&str; 11] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
];

/// Where answers are compiled and run.
pub(crate) enum Sandbox {
    /// In namespaces of their own: no network, no writing outside, no process that outlives them.
    Bubblewrap,
    /// As the instructor.
    Trust,
}

impl Sandbox {
    /// Finds the sandbox of this machine, and limits the files that this process and its children write.
    ///
    /// # Errors
    /// Fails if there is none, unless the instructor trusts the answers.
    pub(crate) fn find(trust: bool) -> anyhow::Result<Self> {
        limit_files()?;
        if trust {
            return Ok(Self::Trust);
        }
        let works = Self::Bubblewrap
            .command(Path::new("true"), &[], &[], Path::new("/"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output();
        let why = match works {
            Ok(output) if output.status.success() => return Ok(Self::Bubblewrap),
            Ok(output) => {
                format!("bubblewrap doesn't work here: {}", String::from_utf8_lossy(&output.stderr).trim())
            }
            Err(error) => format!("bubblewrap can't be run: {error}"),
        };
        bail!(
            "answers are programs that strangers wrote, so they run in a sandbox, and there is none: {why}\n\
             do one of these:\n  \
             - install it: sudo apt install bubblewrap   (Fedora: sudo dnf install bubblewrap)\n  \
             - grade in a container, with three commands: see \"In a container\" in site/book/src/instructors.md\n  \
             - add --trust, if you would run these answers on this machine by hand"
        )
    }

    /// Its name in the results.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Bubblewrap => "bubblewrap",
            Self::Trust => "none (--trust)",
        }
    }

    /// Returns a command that runs a program in `folder`. In a sandbox, it can read only the system and `readable`, and
    /// write only `writable`.
    pub(crate) fn command(
        &self,
        program: &Path,
        readable: &[&Path],
        writable: &[&Path],
        folder: &Path,
    ) -> Command {
        let mut command = match self {
            Self::Trust => Command::new(program),
            Self::Bubblewrap => {
                let mut command = Command::new("bwrap");
                command.args(["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
                for path in SYSTEM {
                    command.args(["--ro-bind-try", path, path]);
                }
                command.args(["--proc", "/proc", "--dev", "/dev"]);
                for path in ["/tmp", "/dev/shm"] {
                    command.args(["--size", &TEMPORARY_BYTES.to_string(), "--tmpfs", path]);
                }
                for (option, paths) in [("--ro-bind", readable), ("--bind", writable)] {
                    for path in paths {
                        command.arg(option).args([path, path]);
                    }
                }
                command.arg("--chdir").arg(folder).arg("--").arg(program);
                command
            }
        };
        command.current_dir(folder).env_clear();
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        command.env("PATH", path).env("HOME", "/tmp").env("LANG", "C.UTF-8");
        command
    }
}

/// Limits what this process and all that it starts can do to the disk. If only the children were limited, each of them
/// would have to be a copy of this process first, which takes longer.
fn limit_files() -> anyhow::Result<()> {
    for (resource, most) in [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_FSIZE, MOST_FILE_BYTES)] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the pointer is to a limit that outlives the call.
        let status = unsafe { libc::setrlimit(resource, &limit) };
        ensure!(status == 0, "can't limit the size of files: {}", std::io::Error::last_os_error());
    }
    Ok(())
}
