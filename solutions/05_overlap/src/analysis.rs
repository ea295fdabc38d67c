//! What could overlap, and what did: figures and a common timeline, out of the times of CUDA events.
//!
//! With C milliseconds of computation and M of communication, a program takes T: at most C + M, if nothing overlaps, and at least the
//! longer of the two. The *efficiency* η says where between the two it is, from 0 to 1.

use anyhow::ensure;
use lab::timeline::{Kind, Row, Span};

/// What a GPU's time went into, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// C: how long it computed.
    pub compute: f64,
    /// M: how long it communicated.
    pub communication: f64,
    /// T: from its first start to its last end.
    pub total: f64,
}

/// The time in which at least one of the spans runs. They come in any order, and may overlap.
pub fn busy(spans: &[&Span]) -> f64 {
    // ANCHOR: busy
    // Sum the time in which something runs, each moment once.
    // In the order of their starts, each span adds what lies behind everything before it.
    let mut spans = spans.to_vec();
    spans.sort_by(|one, other| one.start.total_cmp(&other.start));
    let (mut busy, mut until) = (0.0, f64::NEG_INFINITY);
    for span in spans {
        busy += (span.end - span.start.max(until)).max(0.0);
        until = until.max(span.end);
    }
    busy
    // ANCHOR_END: busy
}

/// C, M and T of one GPU's spans. There is at least one; they come in any order, and may overlap, also two of a kind.
pub fn measure(spans: &[Span]) -> Overlap {
    // ANCHOR: measure
    // Measure C, M and T.
    // What is copied (`Kind::Copy`) counts for T alone.
    let of = |kind| busy(&spans.iter().filter(|span| span.kind == kind).collect::<Vec<_>>());
    let start = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
    let end = spans.iter().map(|span| span.end).fold(f64::NEG_INFINITY, f64::max);
    Overlap { compute: of(Kind::Compute), communication: of(Kind::Communication), total: end - start }
    // ANCHOR_END: measure
}

impl Overlap {
    /// The shortest time that there could be: everything overlaps that can.
    pub fn ideal(&self) -> f64 {
        self.compute.max(self.communication)
    }

    /// η: the part that overlaps of what could. None where there is nothing to overlap.
    pub fn efficiency(&self) -> Option<f64> {
        // ANCHOR: efficiency
        // Divide the time that was saved by the most that could be saved.
        // No more can be hidden than there is of the shorter one.
        let shorter = self.compute.min(self.communication);
        (shorter > 0.0).then(|| (self.compute + self.communication - self.total) / shorter)
        // ANCHOR_END: efficiency
    }
}

/// How long C milliseconds of computation and M of communication take, if the part η of what can overlap does.
pub fn predicted(compute: f64, communication: f64, efficiency: f64) -> f64 {
    // ANCHOR: predicted
    // Turn the formula of the efficiency around.
    // Does it hold where communication is the longer one?
    compute + communication - efficiency * compute.min(communication)
    // ANCHOR_END: predicted
}

/// Puts all GPUs' spans on one clock, that of GPU 0: `gpus[i]` are those of GPU i, by its own clock. Communication means
/// collectives of all GPUs here, in the same order on each. A collective ends on all of them at about the same moment; that of the last
/// one is taken to be the same. A row's uncertainty is the largest distance between the end of a collective on its GPU
/// and on GPU 0, on the common clock.
///
/// # Errors
/// There is no collective, or one GPU has another number of them than GPU 0.
pub fn align(gpus: Vec<Vec<Span>>) -> anyhow::Result<Vec<Row>> {
    let is_collective = |span: &&Span| span.kind == Kind::Communication;
    let ends = |spans: &Vec<Span>| spans.iter().filter(is_collective).map(|span| span.end).collect();
    let ends: Vec<Vec<f64>> = gpus.iter().map(ends).collect();
    for (gpu, own) in ends.iter().enumerate() {
        let (own, first) = (own.len(), ends[0].len());
        ensure!(own == first, "GPU {gpu} has {own} collectives, and GPU 0 has {first}");
        ensure!(own > 0, "without a collective nothing tells how the clocks of two GPUs compare");
    }
    // ANCHOR: align
    // Shift the times of each GPU, and say how uncertain they are then.
    // `ends[i]` has the ends of GPU i's collectives, by its own clock. All but the last one tell how well the shift fits.
    // A `Row` has two fields, `spans` and `uncertainty`.
    let on_one_clock = gpus.into_iter().zip(&ends).map(|(spans, own)| {
        let shift = ends[0][own.len() - 1] - own[own.len() - 1];
        let apart = own.iter().zip(&ends[0]).map(|(own, first)| (own + shift - first).abs());
        let shifted = |span: Span| Span { start: span.start + shift, end: span.end + shift, ..span };
        Row { uncertainty: apart.fold(0.0, f64::max), spans: spans.into_iter().map(shifted).collect() }
    });
    Ok(on_one_clock.collect())
    // ANCHOR_END: align
}
