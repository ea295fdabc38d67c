//! Reads NCCL's log for this process to count communicators and calls.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// NCCL's log for this process, in a temporary file that is deleted with this value.
#[derive(Debug)]
pub struct NcclLog(PathBuf);

/// How long a line may be incomplete because it is being written: far longer than that takes.
const WRITING: Duration = Duration::from_millis(500);

/// The log for the entire check.
static OF_CHECK: OnceLock<NcclLog> = OnceLock::new();

impl NcclLog {
    /// Makes NCCL log each communicator and each call, through `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS`, and
    /// `NCCL_DEBUG_FILE`. NCCL reads these variables only once, so open the log before the process creates a
    /// communicator or an id.
    ///
    /// # Safety
    /// This sets environment variables, so no other thread may read or set any at the same time.
    pub unsafe fn open() -> Self {
        let file = std::env::temp_dir().join(format!("ncclings_{}.log", std::process::id()));
        // SAFETY: the caller ensures that no other thread accesses environment variables.
        unsafe {
            std::env::set_var("NCCL_DEBUG", "INFO");
            std::env::set_var("NCCL_DEBUG_SUBSYS", "INIT,COLL,DESTROY");
            std::env::set_var("NCCL_DEBUG_FILE", &file);
        }
        Self(file)
    }

    /// Returns the number of communicators created so far, one for each rank of each group.
    ///
    /// # Errors
    /// Fails if NCCL has written no log, or could not write all of it.
    pub fn communicators(&self) -> anyhow::Result<usize> {
        Ok(self.text()?.lines().filter(|line| line.contains("Init COMPLETE")).count())
    }

    /// Returns the largest number of communicators that a GPU has had at the same time. A communicator counts until its
    /// abort or destruction begins. A check that calls this needs [`crate::Check::reads_aborts`].
    ///
    /// # Errors
    /// Fails if NCCL has written no log, or could not write all of it.
    pub fn most_at_once(&self, gpu: usize) -> anyhow::Result<usize> {
        Ok(most_at_once(&self.text()?, gpu))
    }

    /// Returns the element counts of all calls to an operation so far, by all ranks in this process. `operation` is
    /// NCCL's name for it, such as `AllReduce` or `Send`.
    ///
    /// # Errors
    /// Fails if NCCL has written no log, or could not write all of it.
    pub fn calls(&self, operation: &str) -> anyhow::Result<Vec<usize>> {
        Ok(counts(&self.text()?, operation))
    }

    /// Returns the addresses of the send and the receive buffers of this thread's calls to an operation so far, in the order of the
    /// calls. `operation` is a collective's name, as for [`Self::calls`].
    ///
    /// # Errors
    /// Fails if NCCL has written no log, or could not write all of it.
    pub fn buffers(&self, operation: &str) -> anyhow::Result<Vec<(u64, u64)>> {
        // SAFETY: `gettid` has no arguments and can't fail.
        Ok(buffers(&self.text()?, operation, unsafe { libc::gettid() }))
    }

    /// Makes NCCL log for the entire check, so that [`Self::of_check`] can read it.
    ///
    /// # Safety
    /// As for [`Self::open`].
    pub(crate) unsafe fn open_for_check() {
        // SAFETY: the caller promises the same.
        let log = unsafe { Self::open() };
        let _ = OF_CHECK.set(log);
    }

    /// Returns the check's log, if it was opened. Checks on real GPUs have one.
    pub(crate) fn of_check() -> Option<&'static Self> {
        OF_CHECK.get()
    }

    /// Deletes the check's log.
    pub(crate) fn delete_of_check() {
        if let Some(log) = OF_CHECK.get() {
            // If NCCL is not used, it writes no file.
            let _ = std::fs::remove_file(&log.0);
        }
    }

    /// Returns the kind and the count of each collective so far, from one thread or from all threads. Before the first
    /// communicator, there are none.
    ///
    /// # Errors
    /// Fails if NCCL could not write the entire log.
    pub(crate) fn collectives(&self, thread: Option<i32>) -> anyhow::Result<Vec<(String, usize)>> {
        if !self.0.exists() {
            return Ok(Vec::new());
        }
        Ok(collectives(&self.text()?, thread))
    }

    fn text(&self) -> anyhow::Result<String> {
        let path = self.0.display();
        let since = Instant::now();
        loop {
            let text = std::fs::read_to_string(&self.0).with_context(|| format!("NCCL's log {path}"))?;
            // NCCL writes the first line when the first communicator is created.
            if text.contains("NCCL INFO") && text.ends_with('\n') {
                return Ok(text);
            }
            // NCCL ignores failed writes. But a reader may also see one half of a line that another rank is writing.
            ensure!(
                since.elapsed() < WRITING,
                "NCCL's log {path} is empty or cut off, so calls can't be counted; is the disk full?"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the counts in lines such as
/// `… NCCL INFO AllReduce: opCount 0 sendbuff 0x… recvbuff 0x… count 8 datatype 7 …`.
fn counts(text: &str, operation: &str) -> Vec<usize> {
    let call = format!(" {operation}: opCount ");
    let count = |line: &str| field(line.split_once(&call)?.1, "count")?.parse().ok();
    text.lines().filter_map(count).collect()
}

/// Returns the addresses of buffers in lines such as
/// `host:pid:tid [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f… recvbuff 0x7f… count 8 …`.
fn buffers(text: &str, operation: &str, thread: i32) -> Vec<(u64, u64)> {
    let call = format!(" {operation}: opCount ");
    let address = |rest, buffer| u64::from_str_radix(field(rest, buffer)?.strip_prefix("0x")?, 16).ok();
    let of_thread = text.lines().filter_map(|line| line.split_once(&call));
    let of_thread = of_thread.filter(|(prefix, _)| thread_of(prefix) == Some(thread));
    of_thread.filter_map(|(_, rest)| Some((address(rest, "sendbuff")?, address(rest, "recvbuff")?))).collect()
}

/// Returns the word that follows `name` in a line.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().skip_while(|word| *word != name).nth(1)
}

/// Returns the thread in a line's start such as `host:pid:tid [0] NCCL INFO`.
fn thread_of(prefix: &str) -> Option<i32> {
    prefix.split_whitespace().next()?.rsplit(':').next()?.parse().ok()
}

/// Returns the collectives in lines such as `host:pid:tid [0] NCCL INFO AllReduce: opCount 0 … count 8 datatype 7 …`.
fn collectives(text: &str, thread: Option<i32>) -> Vec<(String, usize)> {
    let collective = |line: &str| {
        let (prefix, rest) = line.split_once(" NCCL INFO ")?;
        let own = thread_of(prefix)?;
        let (kind, rest) = rest.split_once(": opCount ")?;
        let count = field(rest, "count")?.parse().ok()?;
        let counts = thread.is_none_or(|thread| thread == own) && !matches!(kind, "Send" | "Recv");
        counts.then(|| (kind.to_owned(), count))
    };
    text.lines().filter_map(collective).collect()
}

/// Returns the largest number of communicators that exist at the same time. A communicator exists from a line such as
/// `… comm 0x… rank 0 nranks 2 cudaDev 1 … - Init COMPLETE` to a line such as
/// `… comm 0x… rank 0 nRanks 2 cudaDev 1 … - Abort START`. Older versions of NCCL log only the end of an abort.
fn most_at_once(text: &str, gpu: usize) -> usize {
    let of_gpu = format!(" cudaDev {gpu} ");
    let (mut there, mut most) = (HashSet::new(), 0);
    for line in text.lines().filter(|line| line.contains(&of_gpu)) {
        let Some(comm) = field(line, "comm") else { continue };
        if line.contains(" - Init COMPLETE") {
            there.insert(comm);
            most = most.max(there.len());
        } else if line.contains(" - Abort ") || line.contains(" - Destroy ") {
            there.remove(comm);
        }
    }
    most
}

impl Drop for NcclLog {
    fn drop(&mut self) {
        // The file is in the folder for temporary files, and may not exist yet.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_listed_by_operation_and_count() {
        let text = "\
host:1:2 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f recvbuff 0x7f count 8 datatype 7 op 0 root 0 comm 0x5 [nranks=2] stream 0x6
host:1:3 [1] NCCL INFO AllReduce: opCount 1 sendbuff (nil) recvbuff 0x7f count 1031 datatype 7 op 4 root 0 comm 0x5 [nranks=2]
host:1:3 [1] NCCL INFO Send: opCount 1 sendbuff (nil) recvbuff 0x7f count 4 datatype 7 op 0 root 1 comm 0x5
host:1:3 [1] NCCL INFO ncclCommInitRank comm 0x5 rank 1 nranks 2 - Init COMPLETE";
        assert_eq!(counts(text, "AllReduce"), [8, 1031]);
        assert_eq!(counts(text, "Send"), [4]);
        assert!(counts(text, "Reduce").is_empty());
    }

    #[test]
    fn a_communicator_exists_from_its_creation_to_its_abort() {
        let made = "h:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 1 nvmlDev 1 - Init COMPLETE\n";
        let another = made.replace("0x5", "0x6");
        let aborted = "h:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 2 cudaDev 1 busId 1a000 - Abort START\n";
        assert_eq!(most_at_once(&[made, aborted, &another].concat(), 1), 1);
        assert_eq!(most_at_once(&[made, &another, aborted].concat(), 1), 2);
        assert_eq!(most_at_once(made, 0), 0);
    }

    #[test]
    fn collectives_are_those_of_a_thread() {
        let text = "\
host:1:2 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f recvbuff 0x7f count 8 datatype 7 op 0 root 0 comm 0x5 [nranks=2] stream 0x6
host:1:3 [1] NCCL INFO Broadcast: opCount 1 sendbuff (nil) recvbuff 0x7f count 31 datatype 7 op 0 root 0 comm 0x5 [nranks=2]
host:1:3 [1] NCCL INFO Send: opCount 1 sendbuff (nil) recvbuff 0x7f count 4 datatype 7 op 0 root 1 comm 0x5
host:1:3 [1] NCCL INFO ncclCommInitRank comm 0x5 rank 1 nranks 2 - Init COMPLETE";
        assert_eq!(collectives(text, Some(2)), [("AllReduce".to_owned(), 8)]);
        assert_eq!(collectives(text, Some(3)), [("Broadcast".to_owned(), 31)]);
        assert_eq!(collectives(text, None).len(), 2);
    }

    #[test]
    fn buffers_are_those_of_a_thread_and_an_operation() {
        let text = "\
host:1:2 [0] NCCL INFO AllGather: opCount 0 sendbuff 0x7f0a recvbuff 0x7f20 count 8 datatype 7 op 0 root 0 comm 0x5 [nranks=2] stream 0x6
host:1:3 [1] NCCL INFO AllGather: opCount 1 sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm 0x5 [nranks=2] stream 0x6
host:1:2 [0] NCCL INFO Broadcast: opCount 1 sendbuff 0x3 recvbuff 0x4 count 31 datatype 7 op 0 root 0 comm 0x5 [nranks=2] stream 0x6";
        assert_eq!(buffers(text, "AllGather", 2), [(0x7f0a, 0x7f20)]);
        assert_eq!(buffers(text, "AllGather", 3), [(1, 2)]);
        assert!(buffers(text, "Gather", 2).is_empty());
    }

    #[test]
    fn an_empty_log_is_an_error() {
        let log = NcclLog(std::env::temp_dir().join(format!("ncclings_empty_{}.log", std::process::id())));
        assert!(log.calls("AllReduce").is_err(), "there is no file");
        std::fs::write(&log.0, "").unwrap();
        let error = log.calls("AllReduce").unwrap_err().to_string();
        assert!(error.contains("is the disk full?"), "{error}");
        std::fs::write(&log.0, "h:1:2 [0] NCCL INFO AllReduce: opCount 0 count 8").unwrap();
        assert!(log.calls("AllReduce").is_err(), "the last line is cut off");
    }

    #[test]
    fn a_line_that_is_being_written_is_read_as_a_whole() {
        let log = NcclLog(std::env::temp_dir().join(format!("ncclings_line_{}.log", std::process::id())));
        let line = "h:1:2 [0] NCCL INFO AllReduce: opCount 0 count 1031 datatype 7\n";
        std::fs::write(&log.0, &line[..50]).unwrap();
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| log.calls("AllReduce").unwrap());
            std::thread::sleep(Duration::from_millis(20));
            std::fs::write(&log.0, line).unwrap();
            assert_eq!(calls.join().unwrap(), [1031]);
        });
    }
}
