// mistake: a bucket is averaged when the first of its gradients is ready
// fails: buckets::each_step_is_that_of_one_gpu
// says: data race on GPU

use std::ops::Range;

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

pub fn plan(layout: &[Range<usize>], cap: usize) -> Vec<Range<usize>> {
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
}

pub fn step(comm: &Comm, model: &mut impl Trainable, buckets: &[Range<usize>]) -> anyhow::Result<()> {
    let (compute, communication) = (model.stream().clone(), comm.stream());
    let layout = model.layout().to_vec();
    compute.memset_zeros(&mut model.gradients_mut())?;
    let mut left = buckets.iter().peekable();
    let mut average_down_to = |parameter: usize, gradients: &mut CudaViewMut<f32>| {
        while let Some(bucket) = left.next_if(|bucket| bucket.end > parameter) {
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
}

pub fn predicted(buckets: f64, compute: f64, communication: f64, latency: f64) -> f64 {
    let (computed, averaged) = (compute / buckets, communication / buckets + latency);
    computed + (buckets - 1.0) * computed.max(averaged) + averaged
}

pub fn best_number(compute: f64, latency: f64) -> f64 {
    (compute / latency).sqrt()
}
