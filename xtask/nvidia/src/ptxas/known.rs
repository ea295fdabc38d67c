//! The differences between ptxas and the virtual GPU's front end that are meant to be.

use super::mutants::Mutant;

/// What ptxas says about PTX that is right: recursive functions have no limit that it could know.
const EXPECTED: [&str; 1] = ["Stack size for entry function"];

/// Returns whether a message doesn't mean that something is wrong.
pub(super) fn is_expected(message: &str) -> bool {
    EXPECTED.iter().any(|expected| message.contains(expected))
}

/// A kind of difference.
struct Known {
    /// The kind of mistake, or nothing for any kind.
    kind: &'static str,
    /// A part of the changed line, or of what ptxas says about it.
    part: &'static str,
    reason: &'static str,
}

/// What ptxas refuses and the front end accepts.
const MORE_LENIENT: &[Known] = &[
    Known {
        kind: "another target",
        part: "Unsupported .target",
        reason: "a later architecture may exist: the front end runs PTX for any architecture",
    },
    Known {
        kind: "another address size",
        part: "32-Bit ABI",
        reason: "older architectures have 32-bit addresses: the size that a module states has no effect",
    },
    Known {
        kind: "another address",
        part: "32-Bit ABI",
        reason: "the manual extends a 32-bit register to an address, and older architectures allow that",
    },
    Known {
        kind: "another state space",
        part: "State space mismatch",
        reason: "the parameters of calls are local memory in the virtual GPU",
    },
    Known {
        kind: "no modifier",
        part: "State space mismatch",
        reason: "local memory, which holds the parameters of calls, has generic addresses",
    },
    Known {
        kind: "two modifiers swapped",
        part: "mad.cc.",
        reason: "the front end doesn't check the order of `.cc` and `.lo` or `.hi`",
    },
    Known {
        kind: "a modifier of another instruction",
        part: "madc.cc.",
        reason: "the front end doesn't check the order of `.cc` and `.lo` or `.hi`",
    },
];

/// What ptxas accepts and the front end refuses.
const STRICTER: &[Known] = &[
    Known {
        kind: "two modifiers swapped",
        part: "",
        reason: "ptxas accepts some modifiers in another order than in the manual's syntax",
    },
    Known {
        kind: "a modifier of another instruction",
        part: "",
        reason: "ptxas accepts some modifiers after the type",
    },
    Known { kind: "a modifier twice", part: "", reason: "ptxas accepts some modifiers twice" },
    Known {
        kind: "an immediate out of range",
        part: "0x1ffffffffffffffff",
        reason: "ptxas drops the digits of a hexadecimal constant beyond 64 bits",
    },
    Known {
        kind: "a special register as an operand",
        part: "%clock64",
        reason: "the virtual GPU converts no clocks, because no compiler does",
    },
    Known {
        kind: "an operand too many",
        part: "atom.global.exch",
        reason: "ptxas ignores another operand of `exch`, which the manual doesn't mention",
    },
    Known { kind: "a line without its end", part: "", reason: "ptxas needs no `;` after a call's operands" },
    Known {
        kind: "another kind of variable",
        part: ".reg .align",
        reason: "ptxas takes the address of a register that is declared like a variable",
    },
    Known {
        kind: "another type of register",
        part: ".reg .b64 %f",
        reason: "ptxas lets `cvt` to a packed pair read wider registers, which the manual doesn't mention",
    },
];

pub(super) fn more_lenient(mutant: &Mutant, error: &str) -> Option<&'static str> {
    find(MORE_LENIENT, mutant, error)
}

pub(super) fn stricter(mutant: &Mutant) -> Option<&'static str> {
    find(STRICTER, mutant, "")
}

fn find(list: &[Known], mutant: &Mutant, error: &str) -> Option<&'static str> {
    let after = mutant.change.split_once('→').map_or("", |(_, after)| after);
    let fits = |known: &&Known| {
        (known.kind.is_empty() || known.kind == mutant.kind)
            && (after.contains(known.part) || error.contains(known.part))
    };
    list.iter().find(fits).map(|known| known.reason)
}
