//! Examinations for the week before a workshop: whether this machine can build the course, and how long the build
//! takes.

use std::ffi::CString;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use course::checks::cargo;
use course::progress::folder;
use course::replace::replace;

use super::diagnosis::{Diagnosis, Status};

/// The disk space for two builds of about 2 GB each: the student's own, and the one from scratch.
const DISK_GIB: f64 = 5.0;

/// Examines the toolchain, the disk, and the ports, and times a build from scratch without a network.
pub(super) fn diagnoses(root: &Path) -> anyhow::Result<Vec<Diagnosis>> {
    let mut diagnoses = vec![version("rustc"), version("cargo"), disk(root)?, ports()];
    eprintln!("building the course from scratch, without a network; this takes a few minutes …");
    diagnoses.push(cold_build(root)?);
    Ok(diagnoses)
}

fn version(tool: &str) -> Diagnosis {
    match Command::new(tool).arg("--version").output() {
        Ok(output) if output.status.success() => {
            Diagnosis::good(tool, String::from_utf8_lossy(&output.stdout).trim())
        }
        _ => Diagnosis::new(tool, Status::Bad, "can't be run").help("https://rustup.rs"),
    }
}

fn disk(root: &Path) -> anyhow::Result<Diagnosis> {
    let free = free_bytes(root)
        .with_context(|| format!("can't determine the free disk space at {}", root.display()))?;
    let free = free as f64 / f64::from(1 << 30);
    let says = format!("{free:.0} GiB free at {}", root.display());
    Ok(match free < DISK_GIB {
        true => Diagnosis::new("disk", Status::Bad, says).help(format!("free {DISK_GIB} GiB")),
        false => Diagnosis::good("disk", says),
    })
}

/// Returns how many bytes a user can still write to the file system of a folder.
fn free_bytes(folder: &Path) -> std::io::Result<u64> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: `statvfs` is plain numbers, so zeros are a valid value.
    let mut stats: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and the call writes only to `stats`.
    match unsafe { libc::statvfs(path.as_ptr(), &mut stats) } {
        0 => Ok(stats.f_bavail.saturating_mul(stats.f_frsize)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Tests TCP ports, because ranks in several processes connect over TCP.
fn ports() -> Diagnosis {
    let meet = || -> std::io::Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let _guest = TcpStream::connect(address)?;
        listener.accept()?;
        Ok(address.port())
    };
    match meet() {
        Ok(port) => Diagnosis::good(
            "ports",
            format!("processes can connect to each other, for example on port {port}"),
        ),
        Err(error) => {
            Diagnosis::new("ports", Status::Bad, format!("one process can't connect to another: {error}"))
                .help("exercises with several processes need TCP connections on 127.0.0.1")
        }
    }
}

fn cold_build(root: &Path) -> anyhow::Result<Diagnosis> {
    let target = folder(root).join("cold-build");
    // An interrupted build may have left files.
    remove(&target)?;
    let started = Instant::now();
    let output = cargo()
        .args(["test", "--offline", "--locked", "--no-run", "--quiet", "--target-dir"])
        .arg(&target)
        .current_dir(root)
        .output()
        .context("can't run cargo")?;
    let took = started.elapsed().as_secs();
    remove(&target)?;
    Ok(match output.status.success() {
        true => Diagnosis::good("cold build", format!("{took} s, without a network")),
        false => Diagnosis::new("cold build", Status::Bad, String::from_utf8_lossy(&output.stderr).trim())
            .help("run this once with a network connection: cargo fetch"),
    })
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Writes all diagnoses to the file that the participant sends in.
pub(super) fn write(root: &Path, diagnoses: &[Diagnosis]) -> anyhow::Result<PathBuf> {
    let file = root.join("doctor.json");
    replace(&file, serde_json::to_string_pretty(diagnoses)?)?;
    Ok(file)
}
