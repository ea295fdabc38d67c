//! The calling thread's stack: the return addresses of its calls, innermost first.
//!
//! Unwinding a stack takes microseconds, and a loop calls from the same line again and again. So each thread remembers
//! the last few stacks that it unwound, with the slot of each return address. If a frame is still at the same address
//! and returns to the same address, its caller's frame is the same, too. So if all slots still hold their values, the
//! stack is unchanged. If only the outer ones do, unwinding ends there.
//!
//! During a call of the program, its stack is captured at most once (see [`share`]).

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The maximum number of frames kept per call. Between a `cu*` function and the user's line are cudarc's layers, at
/// most nine frames deep, the layers of a hidden library, and those of iterators.
const FRAMES: usize = 64;

/// The maximum number of stacks that a thread remembers.
const REMEMBERED: usize = 64;

thread_local! {
    static KNOWN: RefCell<Remembered> = const { RefCell::new(Remembered { stacks: Vec::new(), oldest: 0 }) };
    static CALL: Cell<Call> = const { Cell::new(Call::None) };
}

/// The program's call that this thread is in.
#[derive(Default)]
enum Call {
    #[default]
    None,
    /// Its stack has not been needed. It begins above this address.
    Unknown(usize),
    Known(Arc<[usize]>),
}

/// Runs the body of one call of the program, in which [`take`] returns the same stack each time, without the frames of the
/// body.
pub(crate) fn share<T>(body: impl FnOnce() -> T) -> T {
    /// Ends the call, even if the body panics.
    struct End(Call);

    impl Drop for End {
        fn drop(&mut self) {
            let _ = CALL.try_with(|call| call.set(std::mem::take(&mut self.0)));
        }
    }

    let marker = 0_u8;
    let _end = CALL.try_with(|call| End(call.replace(Call::Unknown(&raw const marker as usize))));
    body()
}

/// Captures the calling thread's stack. During a call of the program, returns the stack that was captured first.
#[inline(never)]
pub(crate) fn take() -> Arc<[usize]> {
    let marker = 0_u8;
    // While a thread is exiting, its call is already gone.
    let stack = match CALL.try_with(Cell::take).unwrap_or_default() {
        Call::None => return capture(&raw const marker as usize),
        Call::Unknown(bottom) => capture(bottom),
        Call::Known(stack) => stack,
    };
    let _ = CALL.try_with(|call| call.set(Call::Known(stack.clone())));
    stack
}

/// Captures the calling thread's stack above `bottom`.
#[inline(never)]
fn capture(bottom: usize) -> Arc<[usize]> {
    // While a thread is exiting, its remembered stacks are already gone.
    KNOWN.try_with(|known| known.borrow_mut().take(bottom)).unwrap_or_else(|_| unwind(bottom, None).0)
}

struct Remembered {
    stacks: Vec<Known>,
    /// The index of the stack to replace next.
    oldest: usize,
}

/// The addresses where return addresses are stored, and their values.
type Slots = Box<[(usize, usize)]>;

struct Known {
    /// The address that the stack begins above: that of a variable in the frame of [`take`] or [`share`].
    bottom: usize,
    slots: Slots,
    stack: Arc<[usize]>,
}

impl Remembered {
    fn take(&mut self, bottom: usize) -> Arc<[usize]> {
        if let Some(known) = self.stacks.iter().find(|known| known.bottom == bottom && known.is_current()) {
            return known.stack.clone();
        }
        let newest = self.oldest.checked_sub(1).unwrap_or(self.stacks.len().saturating_sub(1));
        let (stack, slots) = unwind(bottom, self.stacks.get(newest));
        let known = Known { bottom, slots, stack: stack.clone() };
        // If return addresses are stored elsewhere, such as in registers, the stack is not remembered.
        if known.is_current() && !known.slots.is_empty() {
            match self.stacks.get_mut(self.oldest) {
                Some(oldest) => *oldest = known,
                None => self.stacks.push(known),
            }
            self.oldest = (self.oldest + 1) % REMEMBERED;
        }
        stack
    }
}

impl Known {
    fn is_current(&self) -> bool {
        are_current(&self.slots)
    }
}

/// Returns whether slots still hold their values. The innermost comes first, and all frames below it exist.
fn are_current(slots: &[(usize, usize)]) -> bool {
    slots.iter().all(|&(slot, address)| {
        // SAFETY: the slot is above a variable of an active call, in a frame of the same thread, and is aligned like
        // everything that is pushed. A slot is read only if the slots below it still hold their values, so its frame
        // exists.
        unsafe { (slot as *const usize).read_volatile() == address }
    })
}

// The interface of the platform's unwinder, which the standard library is linked to. Itanium C++ ABI, "Exception
// Handling", section 1.1; `_Unwind_Backtrace` and `_Unwind_GetCFA` are GCC's additions, which LLVM's unwinder has, too.
unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    /// Returns the address at which the frame continues.
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
    /// Returns the stack pointer after the frame's call has returned.
    fn _Unwind_GetCFA(frame: *mut c_void) -> usize;
}

/// `_URC_NO_REASON`: the unwinder goes on to the next frame.
const GO_ON: c_int = 0;
/// `_URC_END_OF_STACK`: it stops, as it does for any value but `GO_ON`.
const STOP: c_int = 5;

/// Returns the stack above `bottom`, and the slots where its return addresses should be: just below where each frame
/// continues. The frames that it has in common with `known` are not unwound again.
fn unwind(bottom: usize, known: Option<&Known>) -> (Arc<[usize]>, Slots) {
    struct Frames<'a> {
        bottom: usize,
        found: Vec<(usize, usize)>,
        known: Option<&'a Known>,
    }

    extern "C" fn add(frame: *mut c_void, frames: *mut c_void) -> c_int {
        // SAFETY: this is the `Frames` below, to which nothing else refers while the stack is unwound.
        let frames = unsafe { &mut *frames.cast::<Frames<'_>>() };
        // SAFETY: the unwinder passes its own frame, which is valid during this call.
        let (continues, returns) = unsafe { (_Unwind_GetCFA(frame), _Unwind_GetIP(frame)) };
        if continues > frames.bottom {
            let found = (continues - size_of::<usize>(), returns);
            if let Some(known) = frames.known
                // Slots further out have higher addresses.
                && let Ok(at) = known.slots.binary_search(&found)
                && are_current(&known.slots[at..])
            {
                let outermost = known.stack[known.slots.len()..].iter().map(|&address| (0, address));
                let room = FRAMES - frames.found.len();
                frames.found.extend(known.slots[at..].iter().copied().chain(outermost).take(room));
                return STOP;
            }
            frames.found.push(found);
        }
        if frames.found.len() < FRAMES { GO_ON } else { STOP }
    }

    // A stack with the most frames may have ended too early for a shorter one.
    let known = known.filter(|known| known.stack.len() < FRAMES);
    let mut frames = Frames { bottom, found: Vec::with_capacity(FRAMES), known };
    // SAFETY: `add` expects a `Frames`, which outlives the call, and does not panic: the vector never grows.
    unsafe { _Unwind_Backtrace(add, (&raw mut frames).cast()) };
    let stack = frames.found.iter().map(|&(_, address)| address).collect();
    // The outermost frame may have no address.
    (stack, frames.found.into_iter().filter(|&(_, address)| address != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Stack = Arc<[usize]>;

    /// Returns the stacks that `take` and `unwind` return.
    #[inline(never)]
    fn twice() -> [Stack; 2] {
        let marker = 0_u8;
        [take(), unwind(&raw const marker as usize, None).0]
    }

    #[inline(never)]
    fn below(frames: usize, room: &mut [u8]) -> [Stack; 2] {
        let mut room = [room.len() as u8; 100];
        match frames {
            0 => twice(),
            1 => std::hint::black_box(below(0, &mut room)),
            _ => std::hint::black_box(below(frames - 1, &mut room[..50])),
        }
    }

    #[test]
    fn a_remembered_stack_equals_the_unwound_stack() {
        // Only calls by the same instruction have the same stack, so the compiler must not unroll this loop.
        let mut taken = Vec::new();
        while taken.len() < std::hint::black_box(3) {
            taken.push(take());
        }
        assert!(Arc::ptr_eq(&taken[0], &taken[2]) == cfg!(target_arch = "x86_64"));
        for round in 0..1_000 {
            let [taken, unwound] = match round % 3 {
                0 => below(round % 7, &mut []),
                1 => below(round % 5, &mut []),
                _ => twice(),
            };
            // The innermost address is where `twice` continues after one of its two calls.
            let callers = unwound.len() - 1;
            assert_eq!(taken[taken.len() - callers..], unwound[1..], "round {round}");
        }
    }

    #[test]
    fn a_stack_goes_past_many_frames() {
        let calls = 50;
        assert!(below(calls, &mut [])[0].len() > calls);
    }

    /// Takes the stack one frame further in.
    #[inline(never)]
    fn further_in() -> Stack {
        std::hint::black_box(take())
    }

    /// Takes the stack of a call twice.
    #[inline(never)]
    fn call() -> [Stack; 2] {
        std::hint::black_box(share(|| [take(), further_in()]))
    }

    #[test]
    fn a_call_has_one_stack() {
        share(|| {
            let outer = take();
            assert!(Arc::ptr_eq(&outer, &further_in()));
            let [inner, again] = call();
            assert!(Arc::ptr_eq(&inner, &again));
            assert_ne!(inner, outer, "a call within a call has a stack of its own");
            assert!(std::panic::catch_unwind(|| share(|| panic!("in a call"))).is_err());
            assert!(Arc::ptr_eq(&outer, &further_in()), "the outer call goes on");
        });
        assert_ne!(further_in(), take(), "the call is over");
    }
}
