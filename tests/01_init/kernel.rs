//! Checks for `init/kernel`.

use anyhow::{Context, bail};
use cudarc::driver::{LaunchConfig, PushKernelArg};
use lab::{
    Budget, Check, Expected, Guarded, each_call_fails, ensure, irregular, returns_at_once, without_panic,
};

use crate::init::kernel::{THREADS, axpy, grid, load};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("kernel::axpy_is_loaded_on_each_gpu", axpy_is_loaded_on_each_gpu).calls(&["load"]),
        Check::new("kernel::the_grid_covers_every_element", the_grid_covers_every_element).calls(&["grid"]),
        Check::new("kernel::every_element_is_computed", every_element_is_computed).calls(&["axpy"]),
        Check::new("kernel::nothing_outside_the_buffer_is_touched", nothing_outside_the_buffer_is_touched)
            .calls(&["axpy"]),
        Check::new("kernel::lengths_that_differ_are_an_error", lengths_that_differ_are_an_error)
            .calls(&["axpy"]),
        Check::new("kernel::no_elements_launch_no_kernel", no_elements_launch_no_kernel).calls(&["axpy"]),
        Check::new("kernel::it_returns_before_the_kernel_has_run", it_returns_before_the_kernel_has_run)
            .calls(&["axpy"]),
        Check::new("kernel::one_kernel_is_launched", one_kernel_is_launched),
        Check::new("kernel::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// The factor is small, so integers multiplied by it stay below 2²⁴, where an `f32` is exact.
const A: f32 = -3.0;

fn computed(y: &[f32], x: &[f32]) -> Vec<f32> {
    y.iter().zip(x).map(|(y, x)| y + A * x).collect()
}

fn axpy_is_loaded_on_each_gpu() -> anyhow::Result<()> {
    let most = lab::world_sizes().len();
    for (gpu, stream) in lab::streams(most)?.iter().enumerate() {
        let kernel =
            load(stream.context()).with_context(|| format!("load(…) returned an error on GPU {gpu}"))?;
        let (y, x) = (irregular::integers(0, 37), irregular::integers(1, 37));
        let (mut on_gpu, n) = (Guarded::new(stream, &y)?, 37_u32);
        let source = Guarded::new(stream, &x)?;
        // The check launches one block itself, because it covers only `load`.
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
        let (mut target, source) = (on_gpu.view_mut(), source.view());
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&mut target).arg(&source).arg(&A).arg(&n);
        // SAFETY: the kernel is axpy(float*, const float*, float, unsigned), and both buffers hold 37 elements.
        unsafe { launch.launch(one) }?;
        Expected::of(&format!("y on GPU {gpu} after the loaded kernel"), &computed(&y, &x))
            .if_instead(&y, "y is unchanged: the loaded kernel wrote none of its elements")
            .exactly(&on_gpu.read()?)?;
    }
    Ok(())
}

fn the_grid_covers_every_element() -> anyhow::Result<()> {
    // The length of one full block comes first. For it, a division that rounds down is correct, but most other wrong
    // formulas are not.
    // An f32 can't hold the last length.
    let lengths = [(256, 1), (1, 1), (255, 1), (257, 2), (1031, 5), (300_000, 1172), (20_000_001, 78_126)];
    for (n, blocks) in lengths {
        let LaunchConfig { grid_dim, block_dim, shared_mem_bytes } = grid(n);
        ensure!(
            block_dim == (THREADS, 1, 1),
            "grid({n}): a block has {block_dim:?} threads, expected ({THREADS}, 1, 1)"
        );
        let in_f32 = ((n as f32 / THREADS as f32).ceil() as u32, 1, 1);
        let cause = if grid_dim == in_f32 {
            format!("\n  likely cause: an f32 can't hold {n}, and rounds it to {}", n as f32)
        } else if grid_dim == (n / THREADS, 1, 1) {
            format!(
                "\n  likely cause: {n} / {THREADS} rounds down, so the elements from {} on have no thread",
                grid_dim.0 * THREADS
            )
        } else {
            String::new()
        };
        ensure!(
            grid_dim == (blocks, 1, 1),
            "grid({n}): {grid_dim:?} blocks with {THREADS} threads each, expected ({blocks}, 1, 1){cause}"
        );
        ensure!(
            shared_mem_bytes == 0,
            "grid({n}): {shared_mem_bytes} bytes of shared memory, expected 0, because the kernel uses none"
        );
    }
    Ok(())
}

/// Runs `axpy` over `len` elements, and compares both buffers.
fn check(len: usize) -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let kernel = load(stream.context())?;
    let (y, x) = (irregular::integers(0, len), irregular::integers(1, len));
    let (mut target, source) = (Guarded::new(&stream, &y)?, Guarded::new(&stream, &x)?);
    axpy(&stream, &kernel, &mut target.view_mut(), &source.view(), A)
        .with_context(|| format!("`axpy` over {len} elements returned an error"))?;
    // A kernel error is checked first, because it is more informative than a failed comparison.
    stream.synchronize().with_context(|| format!("`axpy` over {len} elements failed on the GPU"))?;
    let expected = computed(&y, &x);
    let whole = len - len % THREADS as usize;
    let no_tail = [&expected[..whole], &y[whole..]].concat();
    let threads = grid(u32::try_from(len)?).grid_dim.0 as usize * THREADS as usize;
    let why = if threads == whole { "had no thread: the grid was rounded down" } else { "are unchanged" };
    Expected::of(&format!("x, of {len} elements,"), &x)
        .if_instead(&computed(&x, &y), "x was written instead of y: the arguments are swapped")
        .exactly(&source.read()?)?;
    Expected::of(&format!("y, of {len} elements,"), &expected)
        .if_instead(
            &y,
            "y is unchanged: either no kernel ran over it, or the kernel read 0 for `a`, as it does if `a` is an f64",
        )
        .if_instead(&no_tail, format!("the tail, the last {} elements, {why}", len - whole))
        .exactly(&target.read()?)
}

fn every_element_is_computed() -> anyhow::Result<()> {
    // The tail has a few elements, nearly a block, or none. The other lengths are one element and hundreds of blocks.
    [1031, 511, 512, 1, 70_001].into_iter().try_for_each(check)
}

fn nothing_outside_the_buffer_is_touched() -> anyhow::Result<()> {
    // At these lengths, two mistakes write only into the guards, so they do no harm on any GPU: running to the end of
    // the last block, and running over four times as many elements.
    [1230, 22].into_iter().try_for_each(check)
}

fn lengths_that_differ_are_an_error() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let kernel = load(stream.context())?;
    for (y_len, x_len) in [(37, 36), (37, 39), (1031, 5), (0, 5)] {
        let y = irregular::integers(0, y_len);
        let mut target = Guarded::new(&stream, &y)?;
        let source = Guarded::new(&stream, &irregular::integers(1, x_len))?;
        let result = without_panic(&format!("axpy with {y_len} elements in y and {x_len} in x"), || {
            axpy(&stream, &kernel, &mut target.view_mut(), &source.view(), A)
        })?;
        stream.synchronize()?;
        let Err(error) = result else {
            bail!("y has {y_len} elements and x has {x_len}, but axpy returned Ok; expected an error")
        };
        let text = format!("{error:#}");
        ensure!(
            text.contains(&y_len.to_string()) && text.contains(&x_len.to_string()),
            "the error from `axpy` must contain both lengths, {y_len} and {x_len}; got: {text}"
        );
        Expected::of("y after a rejected `axpy`", &y).exactly(&target.read()?)?;
    }
    Ok(())
}

fn no_elements_launch_no_kernel() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let kernel = load(stream.context())?;
    let y = irregular::integers(0, 37);
    let mut target = Guarded::new(&stream, &y)?;
    let source = Guarded::new(&stream, &y)?;
    let nothing = Budget::of("axpy").case("over no elements").kernels(0).copies(0).fills(0).allocations(0);
    nothing.spend(|| {
        axpy(&stream, &kernel, &mut target.view_mut().slice_mut(5..5), &source.view().slice(5..5), A)
            .context("`axpy` over no elements returned an error")
    })?;
    Expected::of("y around an empty slice", &y).exactly(&target.read()?)
}

fn it_returns_before_the_kernel_has_run() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let kernel = load(stream.context())?;
    let (y, x) = (irregular::integers(0, 1031), irregular::integers(1, 1031));
    let (mut target, source) = (Guarded::new(&stream, &y)?, Guarded::new(&stream, &x)?);
    returns_at_once("axpy", &stream, || axpy(&stream, &kernel, &mut target.view_mut(), &source.view(), A))?;
    Expected::of("y after two calls to `axpy`", &computed(&computed(&y, &x), &x)).exactly(&target.read()?)
}

fn one_kernel_is_launched() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let loading = Budget::of("load").modules(1).kernels(0).copies(0).allocations(0);
    let kernel = loading.spend(|| load(stream.context()))?;
    let source = stream.clone_htod(&irregular::integers(1, 1031))?;
    let mut target = stream.clone_htod(&irregular::integers(0, 1031))?;
    let budget = Budget::of("axpy").modules(0).copies(0).fills(0).allocations(0).host_waits(0);
    let budget = budget.streams(&[(&stream, "`stream`")]);
    budget.kernels(1).spend(|| axpy(&stream, &kernel, &mut target.as_view_mut(), &source.as_view(), A))?;
    stream.synchronize()?;
    // A buffer may have been created on any stream.
    let other = stream.context().new_stream()?;
    let budget = Budget::of("axpy").case("with buffers from another stream").kernels(1);
    let budget = budget.streams(&[(&other, "`stream`")]);
    budget.spend(|| axpy(&other, &kernel, &mut target.as_view_mut(), &source.as_view(), A))?;
    Ok(other.synchronize()?)
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("load", || {
        let stream = lab::streams(1)?.remove(0);
        Ok(move || load(stream.context()).map(drop))
    })?;
    each_call_fails("axpy", || {
        let stream = lab::streams(1)?.remove(0);
        let kernel = load(stream.context())?;
        let source = stream.alloc_zeros::<f32>(37)?;
        let mut target = stream.alloc_zeros::<f32>(37)?;
        Ok(move || axpy(&stream, &kernel, &mut target.as_view_mut(), &source.as_view(), A))
    })
}
