// Runs one rank of a group in the process that a launcher starts for it, on one machine or on several.

use std::net::ToSocketAddrs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use cudarc::nccl::Comm;
use lab::Readable;
use lab::launcher::ranks_on_this_machine;
use lab::roll_call::roll_call;
use m01_init::environment::{assignment, own_stream};
use m01_init::id_exchange::exchange;

/// One rank of a group, as mpirun, srun or torchrun starts it
#[derive(Parser)]
#[command(after_help = "Example: mpirun -n 4 target/debug/m01_init_process")]
struct Arguments {
    /// Where rank 0 listens, HOST:PORT, the same for all ranks
    #[arg(long, default_value = "127.0.0.1:29600")]
    meet: String,
    /// How many seconds the ranks have to find each other
    #[arg(long, default_value_t = 60)]
    timeout: u64,
}

/// Exits with 0 if this rank received a message from every rank, and with 2 otherwise.
fn main() -> ExitCode {
    lab::exit_code(run(&Arguments::parse()).map(|heard| {
        println!("{heard}");
        true
    }))
}

/// Joins the group, and returns a line with what this rank receives from each rank.
fn run(arguments: &Arguments) -> anyhow::Result<String> {
    let assignment = assignment()?;
    let addresses = arguments.meet.to_socket_addrs();
    let address = addresses.with_context(|| format!("--meet {}", arguments.meet))?.next();
    let address = address.with_context(|| format!("--meet {}: no such host", arguments.meet))?;
    // All processes on a machine must choose the same tier, so each asks for GPUs for all of them.
    let tier = lab::attach(ranks_on_this_machine(assignment.world_size)?)?;
    let stream = own_stream(&assignment)?;
    let id =
        exchange(assignment.rank, assignment.world_size, address, Duration::from_secs(arguments.timeout))?;
    stream.context().bind_to_thread()?;
    let comm = Comm::from_rank(stream, assignment.rank, assignment.world_size, id).readable()?;
    let heard: Vec<String> = roll_call(&comm)?.iter().map(ToString::to_string).collect();
    Ok(format!("rank {} ({tier}) hears {}", assignment.rank, heard.join("; ")))
}
