//! Ends processes that their own parent left behind, such as Slurm's daemon for a step, which is in no process group
//! of this program.

use std::fs;

use anyhow::ensure;

/// While it exists, this process becomes the parent of every descendant that loses its own parent. Dropping it kills
/// all children. Drop everything else that has processes before.
pub(crate) struct Orphans(());

impl Orphans {
    pub(crate) fn adopt() -> anyhow::Result<Self> {
        // SAFETY: with this option, `prctl` takes a number and changes only this process's attribute.
        let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        ensure!(result == 0, "prctl: {}", std::io::Error::last_os_error());
        Ok(Self(()))
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        // A child's own children become children of this process when it ends.
        loop {
            let children = children();
            if children.is_empty() {
                return;
            }
            for child in children {
                // SAFETY: `kill` and `waitpid` take numbers and no pointer that is used. The child has not been
                // reaped, so no other process has its number.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
            }
        }
    }
}

/// Returns the numbers of this process's children.
fn children() -> Vec<i32> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    processes
        .filter_map(|process| {
            let number = process.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(process.path().join("stat")).ok()?;
            // The name, in parentheses, may contain spaces. The parent is the second field after it.
            let parent = status.rsplit_once(')')?.1.split_whitespace().nth(1)?;
            (parent == own).then_some(number)
        })
        .collect()
}
