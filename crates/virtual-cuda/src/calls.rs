//! Records the program's calls for checks that count them, and makes calls fail for checks that request it.
//!
//! `VIRTUAL_GPU_FAIL` counts every call to a function. Everything else counts only calls from the program's own
//! sources, that is, calls with a frame from these sources on the stack.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::{self, ThreadId};

use virtual_gpu::config::FailingCall;
use virtual_gpu_core::recorded::{LiveObject, Place, RecordedCall};
use virtual_gpu_core::source_location::{CallSite, SourceLine};
use virtual_gpu_core::status::{CudaStatus, Error, NcclStatus};

use crate::{EXPORTS, answer};

/// The functions that create an object. Each entry lists the index of the argument that receives the handle, and the
/// functions that destroy the object, which take the handle as their first argument.
const MAKERS: [(&str, usize, &[&str]); 28] = [
    ("cuStreamCreate", 0, STREAM_ENDS),
    ("cuStreamCreateWithPriority", 0, STREAM_ENDS),
    ("cuEventCreate", 0, &["cuEventDestroy_v2"]),
    ("cuModuleLoad", 0, MODULE_ENDS),
    ("cuModuleLoadData", 0, MODULE_ENDS),
    ("cuModuleLoadDataEx", 0, MODULE_ENDS),
    ("cuStreamEndCapture", 1, &["cuGraphDestroy"]),
    ("cuGraphCreate", 0, &["cuGraphDestroy"]),
    ("cuGraphClone", 0, &["cuGraphDestroy"]),
    ("cuGraphInstantiateWithFlags", 0, &["cuGraphExecDestroy"]),
    ("cuMemPoolCreate", 0, &["cuMemPoolDestroy"]),
    ("cuMemAlloc_v2", 0, MEMORY_ENDS),
    ("cuMemAllocPitch_v2", 0, MEMORY_ENDS),
    ("cuMemAllocAsync", 0, MEMORY_ENDS),
    ("cuMemAllocFromPoolAsync", 0, MEMORY_ENDS),
    ("cuMemAllocManaged", 0, MEMORY_ENDS),
    ("cuMemHostAlloc", 0, &["cuMemFreeHost"]),
    ("cuMemAllocHost_v2", 0, &["cuMemFreeHost"]),
    ("cuArrayCreate_v2", 0, ARRAY_ENDS),
    ("cuArray3DCreate_v2", 0, ARRAY_ENDS),
    ("cuMipmappedArrayCreate", 0, &["cuMipmappedArrayDestroy"]),
    ("cuTexObjectCreate", 0, &["cuTexObjectDestroy"]),
    ("cuSurfObjectCreate", 0, &["cuSurfObjectDestroy"]),
    ("ncclCommInitRank", 0, COMM_ENDS),
    ("ncclCommInitRankConfig", 0, COMM_ENDS),
    ("ncclCommInitAll", 0, COMM_ENDS),
    ("ncclCommSplit", 3, COMM_ENDS),
    ("ncclCommShrink", 3, COMM_ENDS),
];

const STREAM_ENDS: &[&str] = &["cuStreamDestroy_v2"];
const MODULE_ENDS: &[&str] = &["cuModuleUnload"];
const MEMORY_ENDS: &[&str] = &["cuMemFree_v2", "cuMemFreeAsync"];
const ARRAY_ENDS: &[&str] = &["cuArrayDestroy"];
const COMM_ENDS: &[&str] = &["ncclCommDestroy", "ncclCommAbort"];

/// Parts of the names of functions that destroy something.
const ENDS: [&str; 7] = ["Destroy", "Free", "Unload", "Abort", "Finalize", "Release", "GroupEnd"];

/// Functions whose calls are neither recorded nor made to fail by `virtualGpuFailCall`. cudarc calls them before most
/// other functions.
const SKIPPED: [&str; 2] = ["cuCtxGetCurrent", "cuCtxSetCurrent"];

/// A call from the program's own sources.
#[derive(Clone)]
struct Call {
    function: &'static str,
    arguments: Vec<u64>,
    code: u32,
    line: SourceLine,
}

/// A record of the calls made by one thread or by all threads.
struct Record {
    thread: Option<ThreadId>,
    calls: Vec<Call>,
}

/// A failure that a check requested.
struct Failure {
    /// How many calls remain until the failure, including the call that fails.
    left: u64,
    /// The thread whose calls count; `None` for all threads.
    thread: Option<ThreadId>,
    /// The call that has failed.
    failed: Option<Call>,
}

/// An object that a call created.
struct Object {
    /// The object's number, in order of creation.
    number: u64,
    function: &'static str,
    /// Where the object was created. The line is looked up only if the object is never released, which is rare.
    call_site: CallSite,
}

#[derive(Default)]
struct Watch {
    records: BTreeMap<u64, Record>,
    last_record: u64,
    failure: Option<Failure>,
    /// The list in `VIRTUAL_GPU_FAIL`, with the number of calls left until each failure.
    failing: Vec<FailingCall>,
    tracks_objects: bool,
    /// The live objects, by the first function that could destroy them and by handle.
    objects: HashMap<(&'static str, u64), Object>,
    last_object: u64,
}

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

/// Whether calls are recorded, or made to fail by `virtualGpuFailCall`.
static WATCHES_CALLS: AtomicBool = AtomicBool::new(false);

/// Whether `VIRTUAL_GPU_FAIL` makes calls fail.
static FAILS_LISTED: AtomicBool = AtomicBool::new(false);

/// Whether objects are tracked.
static TRACKS_OBJECTS: AtomicBool = AtomicBool::new(false);

/// Changes what is watched.
fn change<T>(change: impl FnOnce(&mut Watch) -> T) -> T {
    let mut watch = lock();
    let watch = watch.get_or_insert_default();
    let changed = change(watch);
    WATCHES_CALLS.store(!watch.records.is_empty() || watch.failure.is_some(), Ordering::Release);
    FAILS_LISTED.store(!watch.failing.is_empty(), Ordering::Release);
    TRACKS_OBJECTS.store(watch.tracks_objects, Ordering::Release);
    changed
}

fn lock() -> MutexGuard<'static, Option<Watch>> {
    WATCH.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts a record and returns its number.
pub(crate) fn record(any_thread: bool) -> u64 {
    change(|watch| {
        watch.last_record += 1;
        watch
            .records
            .insert(watch.last_record, Record { thread: this_thread(any_thread), calls: Vec::new() });
        watch.last_record
    })
}

/// Ends a record and passes its calls to `visit`.
pub(crate) fn take_record(record: u64, mut visit: impl FnMut(*const RecordedCall)) {
    // Call `visit` without the lock, because it may make calls itself.
    let record = change(|watch| watch.records.remove(&record));
    for call in record.into_iter().flat_map(|record| record.calls) {
        call.show(&mut visit);
    }
}

/// Makes the `nth` call from the program's own sources fail, counting from 1; 0 turns this off.
pub(crate) fn fail(nth: u64, any_thread: bool) {
    let thread = this_thread(any_thread);
    change(|watch| watch.failure = (nth > 0).then_some(Failure { left: nth, thread, failed: None }));
}

/// Calls `visit` with the call that has failed since [`fail`] was called.
pub(crate) fn failed(mut visit: impl FnMut(*const RecordedCall)) {
    let failed = change(|watch| watch.failure.as_ref()?.failed.clone());
    if let Some(call) = failed {
        call.show(&mut visit);
    }
}

/// Makes the calls listed in `VIRTUAL_GPU_FAIL` fail.
///
/// # Errors
/// Fails if one of the functions does not exist.
pub(crate) fn fail_listed(failing: &[FailingCall]) -> Result<(), String> {
    for FailingCall { function, .. } in failing {
        let exists = EXPORTS.iter().any(|it| it.parameters.is_some() && is_named(it.name, function));
        if !exists {
            return Err(format!("VIRTUAL_GPU_FAIL: the virtual GPU has no function {function}"));
        }
    }
    change(|watch| watch.failing = failing.to_vec());
    Ok(())
}

/// Starts tracking the objects that the program's own sources create.
pub(crate) fn track_objects() {
    change(|watch| watch.tracks_objects = true);
}

/// Calls `visit` with each live tracked object.
pub(crate) fn live_objects(mut visit: impl FnMut(*const LiveObject)) {
    let mut live: Vec<_> = change(|watch| {
        let objects = watch.objects.values();
        objects.map(|object| (object.number, object.function, object.call_site.clone())).collect()
    });
    live.sort_by_key(|(number, ..)| *number);
    for (_, function, call_site) in live {
        let Some(line) = call_site.own_line() else { continue };
        let file = c_path(&line);
        visit(&LiveObject { function: answer::keep(function).as_ptr(), place: place(&line, &file) });
    }
}

/// Returns the calling thread, or `None` if calls on any thread count.
fn this_thread(any_thread: bool) -> Option<ThreadId> {
    (!any_thread).then(|| thread::current().id())
}

/// Returns whether `function` is the name of the exported symbol, which may also have a version suffix.
fn is_named(symbol: &str, function: &str) -> bool {
    symbol.strip_prefix(function).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix("_v").is_some_and(|version| version.parse::<u32>().is_ok())
    })
}

fn c_path(line: &SourceLine) -> CString {
    CString::new(line.file.as_os_str().as_bytes()).unwrap_or_default()
}

fn place(line: &SourceLine, file: &CString) -> Place {
    Place { file: file.as_ptr(), line: line.line, column: line.column }
}

impl Call {
    fn show(&self, visit: &mut impl FnMut(*const RecordedCall)) {
        let file = c_path(&self.line);
        visit(&RecordedCall {
            function: answer::keep(self.function).as_ptr(),
            arguments: self.arguments.as_ptr(),
            argument_count: self.arguments.len(),
            code: self.code,
            place: place(&self.line, &file),
        });
    }
}

/// Returns the first eight bytes of an argument.
pub(crate) fn argument<T: Copy>(argument: &T) -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: an argument of a C function is a number, a pointer, or a struct of numbers without padding.
    unsafe {
        let from = std::ptr::from_ref(argument).cast::<u8>();
        std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size_of::<T>().min(8));
    }
    u64::from_ne_bytes(bytes)
}

/// A library's result codes.
pub(crate) trait Status: Copy {
    /// The status returned by a call that is made to fail. Any call may return it, and no program handles it specially.
    const MADE_TO_FAIL: Self;

    /// Returns the code's C value.
    fn code(self) -> u32;
}

impl Status for CudaStatus {
    const MADE_TO_FAIL: Self = Self::OperatingSystem;

    fn code(self) -> u32 {
        self as u32
    }
}

impl Status for NcclStatus {
    const MADE_TO_FAIL: Self = Self::SystemError;

    fn code(self) -> u32 {
        self as u32
    }
}

/// An exported function, as a call to it is watched.
pub(crate) struct Function {
    name: &'static str,
    /// Whether it creates or destroys an object, once that has been asked for. Comparing its name with [`MAKERS`] at each
    /// call would take 4% of the time of a check, and comparing all names in constants would take the compiler two seconds.
    makes_or_ends_object: OnceLock<bool>,
}

impl Function {
    pub(crate) const fn named(name: &'static str) -> Self {
        Self { name, makes_or_ends_object: OnceLock::new() }
    }

    /// Returns its name in C.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    fn makes_or_ends_object(&self) -> bool {
        *self.makes_or_ends_object.get_or_init(|| {
            MAKERS.iter().any(|(maker, _, ends)| *maker == self.name || ends.contains(&self.name))
        })
    }
}

/// Runs the body of an exported function, unless the call is made to fail, and records the call.
pub(crate) fn watch<S: Status>(
    function: &'static Function,
    arguments: &[u64],
    body: &dyn Fn() -> Result<(), Error<S>>,
) -> Result<(), Error<S>> {
    let Some(call) = WatchedCall::begin(function, arguments) else { return body() };
    let answer = match call.failure() {
        None => body(),
        Some(message) => {
            if call.ends_object() {
                let _ = body();
            }
            Err(Error::new(S::MADE_TO_FAIL, message))
        }
    };
    call.end(answer.as_ref().err().map_or(0, |error| error.status.code()));
    answer
}

/// A call of an exported function while calls are watched.
struct WatchedCall<'a> {
    function: &'static str,
    arguments: &'a [u64],
    call_site: CallSite,
    /// The program's own line that made the call, and whether the call can return an error to it, if it counts for a
    /// record or for a failure.
    own: Option<(SourceLine, bool)>,
}

impl<'a> WatchedCall<'a> {
    /// Returns `None` if this call is not watched.
    fn begin(function: &'static Function, arguments: &'a [u64]) -> Option<Self> {
        let counts = WATCHES_CALLS.load(Ordering::Acquire) && !SKIPPED.contains(&function.name);
        let is_watched = counts
            || FAILS_LISTED.load(Ordering::Acquire)
            || TRACKS_OBJECTS.load(Ordering::Acquire) && function.makes_or_ends_object();
        if !is_watched || answer::is_host_function() {
            return None;
        }
        let call_site = CallSite::here();
        let own = if counts { call_site.own_call() } else { None };
        let function = function.name;
        // Forget the object before the call destroys it: another thread may get the same handle immediately.
        change(|watch| watch.forget(function, arguments));
        Some(Self { function, arguments, call_site, own })
    }

    /// Returns the message of the call if it is made to fail.
    fn failure(&self) -> Option<String> {
        let Self { function, arguments, own, .. } = self;
        change(|watch| watch.fails(function, arguments, own.as_ref()))
            .then(|| format!("virtual GPU: {function} fails here because the test requested it"))
    }

    /// Returns whether the call destroys an object. It does so even if it is made to fail, because the program can't
    /// destroy the object after the error.
    fn ends_object(&self) -> bool {
        ENDS.iter().any(|words| self.function.contains(words))
    }

    /// Records the call with its result code.
    fn end(self, code: u32) {
        let Self { function, arguments, call_site, own } = self;
        if code == 0 {
            change(|watch| watch.track(function, arguments, &call_site));
        }
        if let Some((line, _)) = own {
            change(|watch| watch.note(&Call { function, arguments: arguments.to_vec(), code, line }));
        }
    }
}

impl Watch {
    /// Returns whether this call is made to fail. `own` is the line in the program's own sources that made the call,
    /// and whether the call can return an error to that line.
    fn fails(&mut self, function: &'static str, arguments: &[u64], own: Option<&(SourceLine, bool)>) -> bool {
        let mut fails = false;
        for failing in self.failing.iter_mut().filter(|it| it.nth > 0 && is_named(function, &it.function)) {
            failing.nth -= 1;
            fails |= failing.nth == 0;
        }
        let (Some(failure), Some((line, true))) = (&mut self.failure, own) else { return fails };
        let counts = failure.thread.is_none_or(|thread| thread == thread::current().id());
        if failure.left > 0 && counts {
            failure.left -= 1;
            if failure.left == 0 {
                let (arguments, code, line) = (arguments.to_vec(), 0, line.clone());
                failure.failed = Some(Call { function, arguments, code, line });
                fails = true;
            }
        }
        fails
    }

    /// Adds a call to the records that count it.
    fn note(&mut self, call: &Call) {
        let thread = thread::current().id();
        for record in self.records.values_mut().filter(|it| it.thread.is_none_or(|own| own == thread)) {
            record.calls.push(call.clone());
        }
    }

    /// Adds the objects that a call has created.
    fn track(&mut self, function: &str, arguments: &[u64], call_site: &CallSite) {
        let maker = MAKERS.iter().find(|(maker, ..)| *maker == function);
        // After a failed call, cudarc itself may leak objects that its earlier calls created.
        let Some(&(function, argument, ends)) =
            maker.filter(|_| self.tracks_objects && self.failure.is_none())
        else {
            return;
        };
        let count = if function == "ncclCommInitAll" { arguments[1] as usize } else { 1 };
        let address = arguments[argument] as *const u64;
        if address.is_null() {
            return;
        }
        for index in 0..count {
            // SAFETY: the call succeeded, so it has written this many handles.
            let handle = unsafe { address.add(index).read_unaligned() };
            // A rank that does not take part in a split gets no communicator.
            if handle != 0 {
                self.last_object += 1;
                let object = Object { number: self.last_object, function, call_site: call_site.clone() };
                self.objects.insert((ends[0], handle), object);
            }
        }
    }

    /// Forgets an object that this call destroys.
    fn forget(&mut self, function: &str, arguments: &[u64]) {
        if self.objects.is_empty() {
            return;
        }
        let maker = MAKERS.iter().find(|(_, _, ends)| ends.contains(&function));
        if let (Some((_, _, ends)), Some(handle)) = (maker, arguments.first()) {
            self.objects.remove(&(ends[0], *handle));
        }
    }
}
