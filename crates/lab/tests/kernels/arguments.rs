//! Errors of wrong arguments.

use anyhow::ensure;
use cudarc::driver::CudaContext;
use lab::Kernels;
use lab::kernels::{Matrix, Product};

use super::{Bench, expect_error};

pub(super) fn wrong_lengths() -> anyhow::Result<()> {
    let mut bench = Bench::new()?;
    let (before, mut y) = bench.values(6)?;
    let (_, x) = bench.values(5)?;
    let (kernels, stream) = (&bench.kernels, &bench.stream);
    let labels = stream.clone_htod(&[0_u32, 1, 2])?;
    let indices = &labels;
    let shape = Matrix { rows: 2, columns: 3 };
    let cases = [
        (kernels.axpy(stream, &mut y, &x, 1.0), "kernel `axpy`: `x` has 5 elements, expected 6"),
        (
            kernels.sgd_step(stream, &mut y, &x, 1.0),
            "kernel `sgd_step`: `gradient` has 5 elements, expected 6",
        ),
        (
            kernels.matmul(stream, &mut y, &x, &x, Product { m: 2, n: 3, k: 2 }),
            "kernel `matmul`: `a` has 5 elements, expected 2 × 2",
        ),
        (kernels.add_bias(stream, &mut y, &x, shape), "kernel `add_bias`: `bias` has 5 elements, expected 3"),
        (
            kernels.cross_entropy(stream, &mut y, &x, &labels, shape),
            "kernel `cross_entropy`: `labels` has 3 elements, expected 2",
        ),
        (
            kernels.matmul_tb(stream, &mut y, &x, &x, Product { m: usize::MAX, n: 3, k: 2 }),
            "kernel `matmul_tb`: `c` has 6 elements, expected 18446744073709551615 × 3",
        ),
        (
            kernels.gather_rows(stream, &mut y, &x, indices, 3),
            "kernel `gather_rows`: `out` has 6 elements, expected 3 × 3",
        ),
        (
            kernels.gather_rows(stream, &mut y, &x, indices, 2),
            "kernel `gather_rows`: `x` has 5 elements, which are not whole rows of 2",
        ),
        (
            kernels.scatter_rows(stream, &mut y, &x, indices, 2),
            "kernel `scatter_rows`: `x` has 5 elements, expected 3 × 2",
        ),
    ];
    for (answer, expected) in cases {
        expect_error(answer, expected)?;
    }
    ensure!(bench.read(&y)? == before, "a rejected call changed its output");
    Ok(())
}

pub(super) fn other_gpu() -> anyhow::Result<()> {
    let kernels = Kernels::load(&CudaContext::new(0)?)?;
    let stream = CudaContext::new(1)?.new_stream()?;
    let mut x = stream.alloc_zeros(3)?;
    expect_error(
        kernels.relu(&stream, &mut x),
        "kernel `relu` is loaded on GPU 0, but its stream is on GPU 1",
    )
}
