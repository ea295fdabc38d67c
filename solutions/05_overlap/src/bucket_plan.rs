//! The plan for gradient buckets: which gradients each all-reduce averages, and how many buckets are best.
//!
//! With one all-reduce per gradient, you pay the latency for each gradient. With a single all-reduce for all gradients,
//! you pay it once, but it starts only after the backward pass.

use std::ops::Range;

/// Divides the parameters into buckets of at most `cap` bytes, in the order in which they are averaged. `layout[p]` is the
/// range of parameter `p`'s gradient in the flat buffer, in elements of 4 bytes. Each bucket is a range of parameters.
pub fn plan(layout: &[Range<usize>], cap: usize) -> Vec<Range<usize>> {
    // ANCHOR: plan
    // Divide the parameters into buckets:
    // 1. the last parameter is in the first bucket, and every parameter is in exactly one bucket;
    // 2. a bucket has at most `cap` bytes, and contains as many parameters as fit;
    // 3. a parameter that is larger than `cap` gets its own bucket;
    // 4. parameters and `cap` may be larger than 4 GiB.
    let mut buckets: Vec<Range<usize>> = Vec::new();
    for (parameter, gradient) in layout.iter().enumerate().rev() {
        match buckets.last_mut() {
            Some(bucket) if (layout[bucket.end - 1].end - gradient.start) * size_of::<f32>() <= cap => {
                bucket.start = parameter;
            }
            _ => buckets.push(parameter..parameter + 1),
        }
    }
    buckets
    // ANCHOR_END: plan
}

/// Returns the time that a backward pass takes with this number of equal buckets, in the same unit as the other
/// arguments: `compute` is the backward pass alone, `communication` is one all-reduce of all gradients without its
/// latency, and `latency` is added to each all-reduce.
pub fn predicted(buckets: f64, compute: f64, communication: f64, latency: f64) -> f64 {
    // ANCHOR: predicted
    // Predict the time from the start of the pass to the last average:
    // 1. each bucket takes an equal part of `compute` and of `communication`;
    // 2. an all-reduce starts once its bucket has been computed and the previous all-reduce is done.
    let (computed, averaged) = (compute / buckets, communication / buckets + latency);
    computed + (buckets - 1.0) * computed.max(averaged) + averaged
    // ANCHOR_END: predicted
}

/// Returns the number of equal buckets for which [`predicted`] is lowest, if a bucket's all-reduce takes longer than
/// its computation. The number need not be an integer.
pub fn best_number(compute: f64, latency: f64) -> f64 {
    // ANCHOR: best_number
    // Find the number of buckets with the shortest time:
    // 1. assume that each all-reduce takes longer than the computation of one bucket;
    // 2. do not round.
    (compute / latency).sqrt()
    // ANCHOR_END: best_number
}
