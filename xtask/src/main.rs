//! Chores of authors and CI. A student needs none of them.

mod kernels;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Compile kernels/*.cu to kernels/*.ptx, with NVRTC 12.0
    Kernels(kernels::Options),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().chore {
        Chore::Kernels(options) => kernels::run(&options),
    }
}
