//! The calling thread's stack: the addresses to which its calls return, innermost first.
//!
//! To unwind a stack takes microseconds, and a loop calls from the same line again and again. So a thread remembers the
//! last stacks that it has unwound, with the slot of each return address. A frame that is at the
//! same address and returns to the same address has the same caller's frame. So where all slots hold what they held, the
//! stack is unchanged.

use std::cell::RefCell;
use std::sync::Arc;

/// Frames kept per call. Between a `cu*` function and the user's line lie cudarc's layers, at most nine frames deep, and those
/// of a library that is hidden.
const FRAMES: usize = 32;

/// Stacks that a thread remembers.
const REMEMBERED: usize = 64;

thread_local! {
    static KNOWN: RefCell<Remembered> = const { RefCell::new(Remembered { stacks: Vec::new(), oldest: 0 }) };
}

/// Takes the calling thread's stack.
#[inline(never)]
pub(crate) fn take() -> Arc<[usize]> {
    let marker = 0_u8;
    let bottom = &raw const marker as usize;
    // While a thread ends, it has no memory any more.
    KNOWN.try_with(|known| known.borrow_mut().take(bottom)).unwrap_or_else(|_| unwind(bottom).0)
}

struct Remembered {
    stacks: Vec<Known>,
    /// The one that makes room.
    oldest: usize,
}

/// Where return addresses lie, and what they are.
type Slots = Box<[(usize, usize)]>;

struct Known {
    /// A variable's address in the frame of [`take`].
    bottom: usize,
    slots: Slots,
    stack: Arc<[usize]>,
}

impl Remembered {
    fn take(&mut self, bottom: usize) -> Arc<[usize]> {
        if let Some(known) = self.stacks.iter().find(|known| known.bottom == bottom && known.is_current()) {
            return known.stack.clone();
        }
        let (stack, slots) = unwind(bottom);
        let known = Known { bottom, slots, stack: stack.clone() };
        // Where return addresses are kept otherwise, in registers for one, nothing is remembered.
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
        self.slots.iter().all(|&(slot, address)| {
            // SAFETY: the slot lies above a variable of a call that is under way, in a frame of the same thread, aligned as
            // all that is pushed. Each slot is looked at only if those below it hold what they held: so the frame is there.
            unsafe { (slot as *const usize).read_volatile() == address }
        })
    }
}

/// The stack above `bottom`, and the slots where its return addresses should lie: below where each frame goes on.
fn unwind(bottom: usize) -> (Arc<[usize]>, Slots) {
    let mut frames = Vec::with_capacity(FRAMES);
    backtrace::trace(|frame| {
        if frame.sp() as usize > bottom {
            frames.push((frame.sp() as usize - size_of::<usize>(), frame.ip() as usize));
        }
        frames.len() < FRAMES
    });
    let stack = frames.iter().map(|&(_, address)| address).collect();
    // The outermost frame may have no address.
    (stack, frames.into_iter().filter(|&(_, address)| address != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Stacks = [Arc<[usize]>; 2];

    /// The stack as it is taken, and unwound in any case.
    #[inline(never)]
    fn twice() -> Stacks {
        let marker = 0_u8;
        [take(), unwind(&raw const marker as usize).0]
    }

    #[inline(never)]
    fn below(frames: usize, room: &mut [u8]) -> Stacks {
        let mut room = [room.len() as u8; 100];
        match frames {
            0 => twice(),
            1 => std::hint::black_box(below(0, &mut room)),
            _ => std::hint::black_box(below(frames - 1, &mut room[..50])),
        }
    }

    #[test]
    fn a_remembered_stack_is_the_one_that_is_there() {
        let taken: Vec<_> = (0..3).map(|_| take()).collect();
        assert!(Arc::ptr_eq(&taken[0], &taken[2]) == cfg!(target_arch = "x86_64"));
        for round in 0..1_000 {
            let [taken, unwound] = match round % 3 {
                0 => below(round % 7, &mut []),
                1 => below(round % 5, &mut []),
                _ => twice(),
            };
            // The innermost address is where `twice` goes on, after one call or the other.
            let callers = unwound.len() - 1;
            assert_eq!(taken[taken.len() - callers..], unwound[1..], "round {round}");
        }
    }
}
