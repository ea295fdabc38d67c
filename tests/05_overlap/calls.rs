//! How many elements each all-reduce has, as NCCL itself writes it down.

use std::path::PathBuf;

use anyhow::Context;

/// NCCL's log of this process's collectives. There is one at a time, and it is opened before the first communicator.
pub(super) struct CallLog(PathBuf);

impl CallLog {
    pub(super) fn open() -> Self {
        let file = std::env::temp_dir().join(format!("overlap_calls_{}.log", std::process::id()));
        // SAFETY: the check's other threads are not there yet, and NCCL looks when its first communicator is made.
        unsafe {
            std::env::set_var("NCCL_DEBUG", "INFO");
            std::env::set_var("NCCL_DEBUG_SUBSYS", "COLL");
            std::env::set_var("NCCL_DEBUG_FILE", &file);
        }
        Self(file)
    }

    /// The elements of each all-reduce that any rank has called so far.
    pub(super) fn all_reduces(&self) -> anyhow::Result<Vec<usize>> {
        let text = std::fs::read_to_string(&self.0).with_context(|| format!("{}", self.0.display()))?;
        let calls = text.lines().filter(|line| line.contains("AllReduce: opCount"));
        calls
            .map(|line| {
                let mut words = line.split_whitespace().skip_while(|word| *word != "count").skip(1);
                words
                    .next()
                    .and_then(|count| count.parse().ok())
                    .with_context(|| format!("no count in: {line}"))
            })
            .collect()
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        // It lies in the folder for temporary files, and there may be none yet.
        let _ = std::fs::remove_file(&self.0);
    }
}
