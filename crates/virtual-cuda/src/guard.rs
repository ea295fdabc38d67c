//! Protects pinned memory that a copy is using: the program can't access its view of the memory until a thread has
//! waited for the copy.
//!
//! Only pages whose bytes all belong to the copy are protected. If a thread touches such a page, a report is printed,
//! and the thread continues.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock};

use crate::pinned::{PAGE, Pinned};
use crate::{answer, engine};

/// The access that the program still has to protected pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// No access, because a copy is writing to the pages.
    None,
    /// Read access, because a copy is reading the pages.
    Read,
}

/// Protected pages, with their guard's number.
struct Closed {
    id: u64,
    pages: Range<usize>,
    rights: Rights,
}

static CLOSED: Mutex<Vec<Closed>> = Mutex::new(Vec::new());

fn closed() -> MutexGuard<'static, Vec<Closed>> {
    CLOSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Keeps pages protected for as long as it lives.
pub(crate) struct Guard {
    pub(crate) id: u64,
    /// The memory that contains the pages. It keeps them mapped.
    _memory: Arc<Pinned>,
}

impl Guard {
    /// Protects the pages within `bytes` of the program's view of `memory`. Returns `None` if there are none.
    pub(crate) fn close(memory: &Arc<Pinned>, bytes: Range<usize>, rights: Rights) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // The rest of the last byte's page is unused.
        let end = if bytes.end == memory.end() {
            bytes.end.next_multiple_of(PAGE)
        } else {
            bytes.end / PAGE * PAGE
        };
        let pages = bytes.start.next_multiple_of(PAGE)..end;
        if pages.is_empty() {
            return None;
        }
        watch();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut closed = closed();
        closed.push(Closed { id, pages: pages.clone(), rights });
        protect(&closed, &pages);
        Some(Self { id, _memory: memory.clone() })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut closed = closed();
        if let Some(at) = closed.iter().position(|one| one.id == self.id) {
            let opened = closed.swap_remove(at);
            protect(&closed, &opened.pages);
        }
    }
}

/// Sets the program's access to each page to what all of the page's guards allow.
fn protect(closed: &[Closed], pages: &Range<usize>) {
    let here: Vec<&Closed> =
        closed.iter().filter(|one| one.pages.start < pages.end && pages.start < one.pages.end).collect();
    let ends = here.iter().flat_map(|one| [one.pages.start, one.pages.end]);
    let mut cuts: Vec<usize> =
        ends.filter(|cut| pages.contains(cut)).chain([pages.start, pages.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    for part in cuts.windows(2) {
        let of_part = here.iter().filter(|one| one.pages.contains(&part[0]));
        let rights = match of_part.map(|one| one.rights).min_by_key(|rights| *rights as u8) {
            Some(Rights::None) => libc::PROT_NONE,
            Some(Rights::Read) => libc::PROT_READ,
            None => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: the pages are the program's view of pinned memory, which guards keep mapped. The engine uses its own
        // view.
        unsafe { libc::mprotect(part[0] as *mut c_void, part[1] - part[0], rights) };
    }
}

/// The previous fault handler.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();

/// Prepares this thread, and on the first call the process, for faults in protected pages.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeros is a `sigaction` without flags, and the handler has the signature that SA_SIGINFO requires.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let mut former: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut former) == 0 {
                let _ = FORMER.set(former);
            }
        }
    });
    use_large_stack();
}

/// The size of a signal stack. The handler looks up source lines and needs more space than Rust's own signal stacks
/// have.
const STACK: usize = 1 << 20;

/// Gives this thread's handlers a stack that is large enough. It is never freed, because nothing reports that the
/// thread has ended.
fn use_large_stack() {
    thread_local! {
        static HAS_ONE: Cell<bool> = const { Cell::new(false) };
    }
    if HAS_ONE.replace(true) {
        return;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: this is a new mapping, which is this thread's signal stack from now on.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), STACK, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if start != libc::MAP_FAILED {
            let stack = libc::stack_t { ss_sp: start, ss_flags: 0, ss_size: STACK };
            libc::sigaltstack(&raw const stack, std::ptr::null_mut());
        }
    }
}

/// Handles a fault. The engine itself never touches protected memory, so this thread holds none of the engine's locks.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid description of the fault.
    let address = unsafe { (*info).si_addr() } as usize;
    let hit = closed().iter().find(|one| one.pages.contains(&address)).map(|one| one.id);
    let Some(id) = hit else { return hand_on(signal, info, context) };
    // A host function may run between the copies on its stream, so its accesses are allowed.
    if !answer::is_host_function() {
        let _ = catch_unwind(|| engine::get().map(|engine| engine.host_touched(id)));
    }
    // In both cases, the thread continues, because the page is accessible now.
    let mut closed = closed();
    if let Some(at) = closed.iter().position(|one| one.id == id) {
        let opened = closed.swap_remove(at);
        protect(&closed, &opened.pages);
    }
}

/// Passes on a fault that is unrelated to protected pages.
fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the previous handler is called as the kernel would have called it. Without a handler, the fault occurs
    // again and ends the process, as it would have without this one.
    unsafe {
        match FORMER.get() {
            Some(former) if former.sa_sigaction > libc::SIG_IGN => {
                if former.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        std::mem::transmute(former.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(c_int) = std::mem::transmute(former.sa_sigaction);
                    handler(signal);
                }
            }
            _ => drop(libc::signal(signal, libc::SIG_DFL)),
        }
    }
}
