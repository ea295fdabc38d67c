//! Selects one of two registers by a predicate.

use crate::features::vectorized;
use crate::registers::Files;
use virtual_gpu_ptx::instruction::{Condition, Slot};

vectorized! {
    /// Executes `selp` on 32-bit values.
    fn select_words(files: &mut Files, mask: &[u16], slots: [Slot; 3], condition: Condition) = select_words_body
}

#[inline(always)]
fn select_words_body(files: &mut Files, mask: &[u16], [d, a, b]: [Slot; 3], condition: Condition) {
    let (d, a, b) = (files.word(d), files.word(a), files.word(b));
    for (chunk, &active) in mask.iter().enumerate() {
        let yes = files.condition(condition, chunk);
        let mut result = files.words[b.at(chunk)];
        let chosen = files.words[a.at(chunk)];
        result.take(chosen, yes);
        files.words[d.at(chunk)].take(result, active);
    }
}

vectorized! {
    /// Executes `selp` on 64-bit values.
    fn select_longs(files: &mut Files, mask: &[u16], slots: [Slot; 3], condition: Condition) = select_longs_body
}

#[inline(always)]
fn select_longs_body(files: &mut Files, mask: &[u16], [d, a, b]: [Slot; 3], condition: Condition) {
    let (d, a, b) = (files.long(d), files.long(a), files.long(b));
    for (chunk, &active) in mask.iter().enumerate() {
        let yes = files.condition(condition, chunk);
        let mut result = files.longs[b.at(chunk)];
        let chosen = files.longs[a.at(chunk)];
        result.take(chosen, yes);
        files.longs[d.at(chunk)].take(result, active);
    }
}
