//! Buckets: several gradients in one all-reduce, which begins when the last of them is ready.
//!
//! An all-reduce for each gradient pays the latency for each. One for all of them pays it once, but can't begin before the
//! backward pass is over. Buckets lie between. All gradients lie in one flat buffer, so a bucket is a part of that: the backward
//! pass writes straight into it, and nothing is copied.

use std::ops::Range;

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

/// Puts the parameters into buckets of at most `cap` bytes, in the order in which they are to be averaged: the last parameter
/// is in the first bucket. `layout` says where the gradient of each parameter lies, in elements of 4 bytes. A bucket is a range
/// of parameters, and takes as many as fit; one that alone is larger than `cap` has a bucket of its own.
pub fn plan(layout: &[Range<usize>], cap: usize) -> Vec<Range<usize>> {
    // ANCHOR: plan
    // Fill bucket after bucket, from the last parameter to the first.
    // A new one begins whenever a parameter doesn't fit any more.
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

/// One step of training, all ranks together, with an all-reduce for each of the `buckets` that [`plan`] makes. Each begins as
/// soon as its gradients are ready, and is free to run in parallel with the rest of the backward pass. A parameter that a rank's samples
/// do not use counts with a gradient of 0 there. Every rank must call it, with the same buckets; returns at once.
///
/// Both streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// Those of the model, and what NCCL and the driver answer.
pub fn step(comm: &Comm, model: &mut impl Trainable, buckets: &[Range<usize>]) -> anyhow::Result<()> {
    // ANCHOR: step
    // Average each bucket as soon as all of it is ready, and step when all buckets are there.
    // `model.backward(|parameter, gradients| …)` goes from the last parameter to the first, and leaves out those that this rank
    // does not use. What lies in their place has to be 0, and nobody may clear what is still being averaged. Where no
    // hook gives the buffer, `model.gradients_mut()` does.
    let (compute, communication) = (model.stream().clone(), comm.stream());
    let layout = model.layout().to_vec();
    compute.memset_zeros(&mut model.gradients_mut())?;
    let mut left = buckets.iter().peekable();
    let mut average_down_to = |parameter: usize, gradients: &mut CudaViewMut<f32>| {
        while let Some(bucket) = left.next_if(|bucket| bucket.start >= parameter) {
            communication.wait(&compute.record_event(None)?)?;
            let elements = layout[bucket.start].start..layout[bucket.end - 1].end;
            average_in_place(comm, &mut gradients.slice_mut(elements))?;
        }
        anyhow::Ok(())
    };
    model.backward(&mut average_down_to)?;
    average_down_to(0, &mut model.gradients_mut())?;
    compute.wait(&communication.record_event(None)?)?;
    model.descend()
    // ANCHOR_END: step
}

/// The time of a backward pass with so many equal buckets, in the unit of the others: `compute` is that of the pass alone,
/// `communication` that of one all-reduce of everything without its latency, and `latency` what each all-reduce takes besides.
pub fn predicted(buckets: f64, compute: f64, communication: f64, latency: f64) -> f64 {
    // ANCHOR: predicted
    // Sum what one bucket takes after the other.
    // The first bucket's computation overlaps with nothing, and neither does the last one's all-reduce. Between them, one
    // bucket's all-reduce runs in parallel with the next one's computation: which of the two counts?
    let (computed, averaged) = (compute / buckets, communication / buckets + latency);
    computed + (buckets - 1.0) * computed.max(averaged) + averaged
    // ANCHOR_END: predicted
}

/// The number of equal buckets with which a backward pass takes least where communication is the longer part: where
/// [`predicted`] is lowest. It need not be whole.
pub fn best_number(compute: f64, latency: f64) -> f64 {
    // ANCHOR: best_number
    // Find the number of buckets at which the time is shortest.
    // Where an all-reduce takes longer than a bucket's computation, `predicted` is compute / B + communication + B · latency.
    (compute / latency).sqrt()
    // ANCHOR_END: best_number
}
