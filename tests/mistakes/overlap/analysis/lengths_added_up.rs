// mistake: C and M are the sums of the spans' lengths
// fails: analysis::the_total_is_from_the_first_to_the_last
// says: the lengths were summed
// says: `busy` counts each moment once

use anyhow::ensure;
use lab::timeline::{Kind, Row, Span};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    pub compute: f64,
    pub communication: f64,
    pub total: f64,
}

pub fn busy(spans: &[&Span]) -> f64 {
    let mut spans = spans.to_vec();
    spans.sort_by(|one, other| one.start.total_cmp(&other.start));
    let (mut busy, mut until) = (0.0, f64::NEG_INFINITY);
    for span in spans {
        busy += (span.end - span.start.max(until)).max(0.0);
        until = until.max(span.end);
    }
    busy
}

pub fn measure(spans: &[Span]) -> Overlap {
    let of = |kind| spans.iter().filter(|span| span.kind == kind).map(|span| span.end - span.start).sum();
    let start = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
    let end = spans.iter().map(|span| span.end).fold(f64::NEG_INFINITY, f64::max);
    Overlap { compute: of(Kind::Compute), communication: of(Kind::Communication), total: end - start }
}

impl Overlap {
    pub fn ideal(&self) -> f64 {
        self.compute.max(self.communication)
    }

    pub fn efficiency(&self) -> Option<f64> {
        let shorter = self.compute.min(self.communication);
        (shorter > 0.0).then(|| (self.compute + self.communication - self.total) / shorter)
    }
}

pub fn predicted(compute: f64, communication: f64, efficiency: f64) -> f64 {
    compute + communication - efficiency * compute.min(communication)
}

pub fn align(gpus: Vec<Vec<Span>>) -> anyhow::Result<Vec<Row>> {
    let is_collective = |span: &&Span| span.kind == Kind::Communication;
    let ends = |spans: &Vec<Span>| spans.iter().filter(is_collective).map(|span| span.end).collect();
    let ends: Vec<Vec<f64>> = gpus.iter().map(ends).collect();
    for (gpu, own) in ends.iter().enumerate() {
        let (own, first) = (own.len(), ends[0].len());
        ensure!(own == first, "GPU {gpu} has {own} collectives, and GPU 0 has {first}");
        ensure!(own > 0, "without a collective nothing tells how the clocks of two GPUs compare");
    }
    let on_one_clock = gpus.into_iter().zip(&ends).map(|(spans, own)| {
        let shift = ends[0][own.len() - 1] - own[own.len() - 1];
        let apart = own.iter().zip(&ends[0]).map(|(own, first)| (own + shift - first).abs());
        let shifted = |span: Span| Span { start: span.start + shift, end: span.end + shift, ..span };
        Row { uncertainty: apart.fold(0.0, f64::max), spans: spans.into_iter().map(shifted).collect() }
    });
    Ok(on_one_clock.collect())
}
