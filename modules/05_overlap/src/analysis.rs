//! Measured overlap: how much could overlap, how much did, and a common timeline, all based on CUDA event times.
//!
//! A program with C milliseconds of computation and M milliseconds of communication takes a time T: C + M if nothing overlaps
//! and there are no gaps, and at least the longer of the two. The *efficiency* η is 0 at the first of these times, and 1 at the second.

use anyhow::ensure;
use lab::timeline::{Kind, Row, Span};

/// Where a GPU's time went, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// C: how long the GPU computed.
    pub compute: f64,
    /// M: how long the GPU communicated.
    pub communication: f64,
    /// T: from the first start to the last end.
    pub total: f64,
}

/// Returns the total time during which at least one of the spans is running. The spans are in any order, and may overlap.
pub fn busy(spans: &[&Span]) -> f64 {
    // ANCHOR: busy
    // Measure the time during which something is running:
    // 1. every moment counts once, no matter how many spans are running;
    // 2. time between spans does not count;
    // 3. times have an arbitrary origin, so they may be negative.
    todo!("Measure the time during which something is running")
    // ANCHOR_END: busy
}

/// Returns C, M, and T for one GPU. There is at least one span. The spans are in any order, and may overlap, even if
/// they are of the same kind.
pub fn measure(spans: &[Span]) -> Overlap {
    // ANCHOR: measure
    // Measure C, M, and T:
    // 1. C and M count every moment once;
    // 2. T lasts from the earliest start to the latest end of all spans;
    // 3. copies count only toward T.
    todo!("Measure C, M, and T")
    // ANCHOR_END: measure
}

impl Overlap {
    /// Returns the shortest possible time, with full overlap.
    pub fn ideal(&self) -> f64 {
        self.compute.max(self.communication)
    }

    /// Returns η, the fraction of the possible overlap that was achieved. Returns `None` if nothing could overlap.
    pub fn efficiency(&self) -> Option<f64> {
        // ANCHOR: efficiency
        // Compute the efficiency:
        // 1. it is 0 if nothing overlaps, so that T = C + M;
        // 2. it is 1 if T is the shortest possible time, no matter whether C or M is longer;
        // 3. it grows linearly as T falls, and is negative if gaps make T longer than C + M;
        // 4. without computation or without communication, it is `None`.
        todo!("Compute the efficiency")
        // ANCHOR_END: efficiency
    }
}

/// Returns how long C milliseconds of computation and M milliseconds of communication take at the given efficiency.
pub fn predicted(compute: f64, communication: f64, efficiency: f64) -> f64 {
    // ANCHOR: predicted
    // Predict the time:
    // 1. it is the time for which `Overlap::efficiency` returns the given efficiency;
    // 2. it is correct no matter which of the two is longer.
    todo!("Predict the time")
    // ANCHOR_END: predicted
}

/// Converts the spans from all GPUs to GPU 0's clock. `gpus[i]` contains the spans from GPU `i`, measured by its own
/// clock. All communication consists of collectives that involve all GPUs, in the same order on each.
///
/// # Errors
/// Fails if there is no collective, or if a GPU's number of collectives differs from GPU 0's.
pub fn align(gpus: Vec<Vec<Span>>) -> anyhow::Result<Vec<Row>> {
    let is_collective = |span: &&Span| span.kind == Kind::Communication;
    let ends = |spans: &Vec<Span>| spans.iter().filter(is_collective).map(|span| span.end).collect();
    let ends: Vec<Vec<f64>> = gpus.iter().map(ends).collect();
    for (gpu, own) in ends.iter().enumerate() {
        let (own, first) = (own.len(), ends[0].len());
        ensure!(own == first, "GPU {gpu} has {own} collectives, but GPU 0 has {first}");
        ensure!(own > 0, "without a collective, the clocks of two GPUs can't be compared");
    }
    // ANCHOR: align
    // Put all spans on one clock:
    // 1. all spans of a GPU are shifted by the same amount, so that its last collective ends when GPU 0's does;
    // 2. a row's uncertainty is the largest difference, after the shift, between the end of a collective on that GPU and its end on GPU 0;
    // 3. no uncertainty is negative, and the rows are in GPU order.
    todo!("Put all spans on one clock")
    // ANCHOR_END: align
}
