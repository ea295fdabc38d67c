//! Runs two averages with independent and dependent work. The wait comes at once, before the use, or at the end.

use std::cell::RefCell;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::timeline::{Drawing, Kind, RankRun, Span, timed};
use lab::{Expected, Kernels, Timeline, irregular};
use m05_overlap::waiting::{Pending, all_at_the_end, at_once, before_use};

#[derive(Clone, Copy)]
enum Way {
    AtOnce,
    BeforeUse,
    AtTheEnd,
}

const AVERAGES: usize = 2;
/// How often independent work passes over its buffer, and dependent work over its own.
const INDEPENDENT: usize = 2;
const DEPENDENT: usize = 1;

/// Waits in each of the three ways, and shows GPU 0.
pub(super) fn run(streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
    let mut drawing = Drawing::of_runs(format!(
        "{AVERAGES} averages, waited for at three places: GPU 0 of {}",
        streams.len()
    ));
    for (way, name) in
        [(Way::AtOnce, "at once"), (Way::BeforeUse, "before use"), (Way::AtTheEnd, "at the end")]
    {
        let ranks = rendezvous(streams, |comm| on_rank(&comm, way, 4096 * scale))?;
        drawing.add_run(name, ranks);
    }
    Ok(drawing)
}

fn on_rank(comm: &Comm, way: Way, len: usize) -> anyhow::Result<RankRun> {
    let (context, stream) = (comm.context(), comm.stream());
    // SAFETY: `Pending` orders the two streams by events, and the host waits before it reads or frees anything.
    unsafe { context.disable_event_tracking() };
    let mut rank = Rank::new(comm, len)?;
    let mut buffers: Vec<CudaSlice<f32>> = Vec::new();
    for average in 0..AVERAGES {
        buffers.push(rank.compute.clone_htod(&input(comm.rank(), average, len))?);
    }
    rank.warm_up()?;
    rank.go(way, buffers.iter_mut().map(CudaSlice::as_view_mut).collect())?;
    let spans = rank.spans()?;
    rank.compute.synchronize()?;
    stream.synchronize()?;
    Ok(RankRun::new(spans, rank.verify()))
}

/// Returns a rank's input to an average.
fn input(rank: usize, average: usize, len: usize) -> Vec<f32> {
    irregular::integers(100 * average + rank, len)
}

/// One rank, and when its work ran.
struct Rank<'a> {
    comm: &'a Comm,
    compute: Arc<CudaStream>,
    kernels: Kernels,
    timeline: RefCell<Timeline>,
    /// The averages' names, with an event before and after each. The exercise enqueues the averages themselves.
    averages: RefCell<Vec<(String, CudaEvent, CudaEvent)>>,
    ones: CudaSlice<f32>,
    /// The counter of the independent work; `results` belong to the dependent work, one for each average.
    count: RefCell<CudaSlice<f32>>,
    results: RefCell<Vec<CudaSlice<f32>>>,
}

impl<'a> Rank<'a> {
    fn new(comm: &'a Comm, len: usize) -> anyhow::Result<Self> {
        let compute = comm.context().new_stream()?;
        let mut results = Vec::new();
        for _ in 0..AVERAGES {
            results.push(compute.alloc_zeros(len)?);
        }
        Ok(Self {
            comm,
            kernels: Kernels::load(comm.context())?,
            timeline: RefCell::new(Timeline::start(&compute)?),
            averages: RefCell::default(),
            ones: compute.clone_htod(&vec![1.0; len])?,
            count: RefCell::new(compute.alloc_zeros(len)?),
            results: RefCell::new(results),
            compute,
        })
    }

    /// Loads the kernels and sets up connections with a first average. Leaves both streams idle.
    fn warm_up(&mut self) -> anyhow::Result<()> {
        let mut buffer = self.compute.alloc_zeros::<f32>(self.ones.len())?;
        let average =
            Pending::average(self.comm, &self.compute, buffer.as_view_mut())?.wait(&self.compute)?;
        self.kernels.axpy(&self.compute, self.count.get_mut(), &average, 1.0)?;
        self.compute.synchronize()?;
        self.timeline = RefCell::new(Timeline::start(&self.compute)?);
        Ok(())
    }

    fn go(&self, way: Way, buffers: Vec<CudaViewMut<f32>>) -> anyhow::Result<()> {
        if let Way::AtTheEnd = way {
            let start = self.average_starts()?;
            let independent = || {
                self.averages_end("averages 0, 1", start)?;
                (0..AVERAGES).try_for_each(|average| self.independent(average))
            };
            let dependent = |index: usize, average: &CudaViewMut<f32>| self.dependent(index, average);
            return all_at_the_end(self.comm, &self.compute, buffers, independent, dependent);
        }
        for (index, buffer) in buffers.into_iter().enumerate() {
            let start = self.average_starts()?;
            let independent = || {
                self.averages_end(&format!("average {index}"), start)?;
                self.independent(index)
            };
            let dependent = |average: &CudaViewMut<f32>| self.dependent(index, average);
            match way {
                Way::AtOnce => at_once(self.comm, &self.compute, buffer, independent, dependent)?,
                _ => before_use(self.comm, &self.compute, buffer, independent, dependent)?,
            }
        }
        Ok(())
    }

    /// Marks where the next average starts in the comm stream: after all work that is in the compute stream now.
    fn average_starts(&self) -> anyhow::Result<CudaEvent> {
        let stream = self.comm.stream();
        stream.wait(&self.compute.record_event(None)?)?;
        timed(&stream)
    }

    /// Marks the end of the averages. Nothing else is in the comm stream after them yet.
    fn averages_end(&self, name: &str, start: CudaEvent) -> anyhow::Result<()> {
        self.averages.borrow_mut().push((name.to_owned(), start, timed(&self.comm.stream())?));
        Ok(())
    }

    /// Enqueues work that needs no average.
    fn independent(&self, index: usize) -> anyhow::Result<()> {
        let Self { compute, kernels, timeline, ones, count, .. } = self;
        timeline.borrow_mut().record(compute, Kind::Compute, format!("independent {index}"), || {
            (0..INDEPENDENT).try_for_each(|_| kernels.axpy(compute, &mut *count.borrow_mut(), ones, 1.0))
        })
    }

    /// Enqueues work that needs this average.
    fn dependent(&self, index: usize, average: &CudaViewMut<f32>) -> anyhow::Result<()> {
        let Self { compute, kernels, timeline, results, .. } = self;
        let result = &mut results.borrow_mut()[index];
        timeline.borrow_mut().record(compute, Kind::Compute, format!("use {index}"), || {
            (0..DEPENDENT).try_for_each(|_| kernels.axpy(compute, result, average, 1.0))
        })
    }

    fn spans(&self) -> anyhow::Result<Vec<Span>> {
        let timeline = self.timeline.borrow();
        let mut spans = timeline.spans()?;
        for (name, start, end) in &*self.averages.borrow() {
            let (name, start, end) = (name.clone(), timeline.time(start)?, timeline.time(end)?);
            spans.push(Span { kind: Kind::Communication, name, start, end });
        }
        Ok(spans)
    }

    /// Compares every element of the results of both kinds of work.
    fn verify(&self) -> anyhow::Result<()> {
        let (rank, world_size, len) = (self.comm.rank(), self.comm.world_size(), self.ones.len());
        let count = self.compute.clone_dtoh(&*self.count.borrow())?;
        Expected::new(rank, "the independent work's count", &vec![(AVERAGES * INDEPENDENT) as f32; len])
            .exactly(&count)?;
        for (average, result) in self.results.borrow().iter().enumerate() {
            let mut expected = vec![0.0; len];
            for rank in 0..world_size {
                expected.iter_mut().zip(input(rank, average, len)).for_each(|(sum, x)| *sum += x);
            }
            expected.iter_mut().for_each(|x| *x = *x / world_size as f32 * DEPENDENT as f32);
            Expected::new(rank, &format!("the result of average {average}"), &expected)
                .within(bound(world_size), &self.compute.clone_dtoh(result)?)?;
        }
        Ok(())
    }
}

/// Returns how far an average of whole numbers up to 1000 may be off. If the number of ranks is a power of two, the average is
/// exact. Otherwise, NCCL multiplies each number by 1/n and sums. That rounds n products, n − 1 sums, and 1/n itself, each by
/// at most half a unit in the last place of 1000.
fn bound(world_size: usize) -> f64 {
    if world_size.is_power_of_two() {
        return 0.0;
    }
    (DEPENDENT * 3 * world_size) as f64 * 1000.0 * f64::from(f32::EPSILON) / 2.0
}
