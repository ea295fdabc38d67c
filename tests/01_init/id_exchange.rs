//! Checks for `init/id_exchange`.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cudarc::nccl::{Comm, Id};
use lab::faults::each_call_of_all_threads_fails;
use lab::{Check, Readable, each_rank, ensure, processes, without_panic};

use crate::exercise::launch::{
    LAUNCHERS, all_variables, check_heard, free_address, mpirun, own_numbers, root_address, root_variables,
    what_it_hears,
};
use crate::init::id_exchange::{ID_BYTES, exchange, fetch, from_bytes, hand_out, to_bytes};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("id_exchange::all_ranks_have_one_id", all_ranks_have_one_id).calls(&["exchange"]),
        Check::new("id_exchange::rank_0_may_start_late", rank_0_may_start_late).calls(&["fetch"]),
        Check::new("id_exchange::waiting_ends_at_the_timeout", waiting_ends_at_the_timeout).calls(&["fetch"]),
        Check::new("id_exchange::fetch_gives_up_on_a_silent_machine", fetch_gives_up_on_a_silent_machine)
            .calls(&["fetch"]),
        Check::new("id_exchange::an_id_may_arrive_in_pieces", an_id_may_arrive_in_pieces).calls(&["fetch"]),
        Check::new("id_exchange::half_an_id_is_an_error", half_an_id_is_an_error).calls(&["fetch"]),
        Check::new("id_exchange::ranks_that_never_connect_are_named", ranks_that_never_connect_are_named)
            .calls(&["hand_out"]),
        Check::new("id_exchange::the_timeout_is_for_all_together", the_timeout_is_for_all_together)
            .calls(&["hand_out"]),
        Check::new("id_exchange::a_silent_connection_is_not_a_rank", a_silent_connection_is_not_a_rank)
            .calls(&["hand_out"]),
        Check::new("id_exchange::a_rank_comes_once", a_rank_comes_once).calls(&["hand_out"]),
        Check::new("id_exchange::a_rank_of_another_world_is_named", a_rank_of_another_world_is_named)
            .calls(&["hand_out"]),
        Check::new("id_exchange::rank_0_listens_at_the_address_alone", rank_0_listens_at_the_address_alone)
            .calls(&["exchange"]),
        Check::new("id_exchange::rank_0_waits_for_all_ranks", rank_0_waits_for_all_ranks)
            .calls(&["exchange"]),
        Check::new("id_exchange::an_address_in_use_is_an_error", an_address_in_use_is_an_error)
            .calls(&["exchange"]),
        Check::new("id_exchange::processes_become_a_group", processes_become_a_group)
            .calls(&["exchange"])
            .process(join)
            .min_ranks(2),
        Check::new("id_exchange::mpirun_makes_a_group", mpirun_makes_a_group)
            .calls(&["exchange"])
            .process(join)
            .min_ranks(2)
            .needs_program("mpirun"),
        Check::new("id_exchange::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// The timeout for an event that should happen immediately: within milliseconds, or a second on a busy machine. Every
/// wrong answer that never lets it happen takes all of it.
const LONG: Duration = Duration::from_secs(4);
/// The timeout for processes to start. On real GPUs, each initializes the driver, which takes seconds if no other
/// process keeps the GPUs initialized.
const STARTING: Duration = Duration::from_secs(30);
/// The time to wait for an event that should never happen: several pauses of a correct answer (`PAUSE`).
const SHORT: Duration = Duration::from_millis(100);

/// Runs work that a mistake may block forever in a separate thread. Gives up before the harness stops the check.
fn in_time<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<anyhow::Result<T>> {
    let (sender, receiver) = channel();
    let thread = thread::Builder::new().name(what.to_owned()).spawn(move || {
        let _ = sender.send(work());
    })?;
    match receiver.recv_timeout(2 * LONG) {
        Ok(result) => Ok(result),
        Err(RecvTimeoutError::Timeout) => bail!(
            "{what} has not returned after {} s, much longer than its timeout: every call that waits needs a limit, \
             such as set_read_timeout or a deadline",
            2 * LONG.as_secs()
        ),
        // The thread panicked; the harness reports the panic.
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => bail!("{what} ended without a result"),
        },
    }
}

/// Returns an id without a communicator. Its bytes are all nonzero and different.
fn some_id() -> Id {
    from_bytes(std::array::from_fn(|at| at as u8 + 1))
}

/// Returns the number of leading bytes that match.
fn alike(got: &[u8], expected: &[u8]) -> usize {
    got.iter().zip(expected).take_while(|(got, expected)| got == expected).count()
}

/// Compares an id that was sent in pieces, the first of which had `first` bytes.
fn check_id(who: &str, got: &Id, expected: &Id, first: usize) -> anyhow::Result<()> {
    let (got, expected) = (to_bytes(got), to_bytes(expected));
    let same = alike(&got, &expected);
    if same == ID_BYTES {
        return Ok(());
    }
    let zeros = got[same..].iter().all(|&byte| byte == 0);
    let rest = if zeros { ", and all the others are 0" } else { "" };
    let cause = match zeros && same == first {
        true => {
            "\n  likely cause: that is exactly the first piece. `read` returns what has arrived so far; `read_exact` \
             waits for all of it"
        }
        false => "",
    };
    bail!("{who} has the wrong id: the first {same} of {ID_BYTES} bytes are correct{rest}{cause}")
}

fn all_ranks_have_one_id() -> anyhow::Result<()> {
    for world_size in 1..=5 {
        let address = free_address()?;
        let ids = in_time("exchange", move || {
            each_rank(world_size, |rank| Ok(to_bytes(&exchange(rank, world_size, address, LONG)?)))
        })??;
        for (rank, id) in ids.iter().enumerate() {
            ensure!(
                *id == ids[0],
                "rank {rank} of {world_size} has a different id from rank 0: the first different byte is byte {} of \
                 0..{ID_BYTES}",
                alike(id, &ids[0])
            );
        }
    }
    Ok(())
}

/// Fetches as rank 3 would, and returns the elapsed time.
fn fetched(address: SocketAddr, timeout: Duration) -> anyhow::Result<(anyhow::Result<Id>, Duration)> {
    in_time("fetch", move || {
        let start = Instant::now();
        let result = fetch(address, 3, timeout);
        Ok((result, start.elapsed()))
    })?
}

fn rank_0_may_start_late() -> anyhow::Result<()> {
    let address = free_address()?;
    let asking = thread::spawn(move || fetched(address, LONG));
    // Longer than a handful of attempts with short pauses.
    thread::sleep(4 * SHORT);
    if asking.is_finished() {
        let (result, took) = join_thread(asking)?;
        let result =
            result.map_or_else(|error| format!("{error:#}"), |_| "an id that was never sent".to_owned());
        bail!(
            "fetch returned after {took:?}, before rank 0 was listening, although its timeout is {LONG:?}. It \
             returned: {result}\n  processes may start in any order, so fetch must keep trying until its timeout"
        );
    }
    let listener = TcpListener::bind(address)?;
    let id = some_id();
    let (peer, rank) = accept(&listener)?;
    ensure!(
        rank == 3,
        "fetch sent {:?} for rank 3, expected {:?}: four bytes, most significant first",
        rank.to_be_bytes(),
        3_u32.to_be_bytes()
    );
    send(peer, &[&to_bytes(&id)])?;
    let (got, _) = join_thread(asking)?;
    check_id("rank 3", &got.context("rank 0 listened in time, but fetch returned an error")?, &id, ID_BYTES)
}

fn join_thread<T>(thread: thread::JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Accepts one connection as rank 0 would, and returns the rank that connected.
fn accept(listener: &TcpListener) -> anyhow::Result<(TcpStream, u32)> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + LONG;
    let mut peer = loop {
        match listener.accept() {
            Ok((peer, _)) => break peer,
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error).context("fetch never connected"),
        }
    };
    peer.set_nonblocking(false)?;
    peer.set_read_timeout(Some(LONG))?;
    let mut rank = [0; 4];
    peer.read_exact(&mut rank).context("fetch connected, but did not send its rank as four bytes")?;
    Ok((peer, u32::from_be_bytes(rank)))
}

/// Writes the pieces with pauses in between, and closes the connection.
fn send(mut peer: TcpStream, pieces: &[&[u8]]) -> anyhow::Result<()> {
    peer.set_nodelay(true)?;
    for (at, piece) in pieces.iter().enumerate() {
        if at > 0 {
            thread::sleep(SHORT);
        }
        // A reader that has enough bytes may already have closed the connection.
        let _ = peer.write_all(piece);
    }
    Ok(())
}

/// Fetches from a rank 0 that sends these pieces.
fn fetch_pieces(pieces: &[&[u8]]) -> anyhow::Result<anyhow::Result<Id>> {
    let listener = TcpListener::bind(free_address()?)?;
    let address = listener.local_addr()?;
    let asking = thread::spawn(move || fetched(address, LONG));
    // If no rank connected, the error from `fetch` explains why.
    let sent = accept(&listener).and_then(|(peer, _)| send(peer, pieces));
    let (got, _) = join_thread(asking)?;
    Ok(got.and_then(|id| sent.map(|()| id)))
}

/// Fetches from an address that never sends an id.
fn fetch_in_vain(situation: &str, address: SocketAddr) -> anyhow::Result<(anyhow::Result<Id>, Duration)> {
    without_panic(&format!("`fetch` from {address} when {situation}"), || fetched(address, SHORT))?
        .with_context(|| format!("`fetch` from {address} when {situation}"))
}

fn waiting_ends_at_the_timeout() -> anyhow::Result<()> {
    let address = free_address()?;
    let (result, took) = fetch_in_vain("no process is listening", address)?;
    let Err(error) = result else {
        bail!("no process is listening at {address}, but fetch returned an id; expected an error")
    };
    let text = format!("{error:#}");
    ensure!(
        text.contains(&address.to_string()),
        "the error from fetch must contain the address {address}; got: {text}"
    );
    ensure!(
        took >= SHORT,
        "no process is listening yet, but fetch gave up after {took:?}, before its timeout of {SHORT:?}: {text}"
    );
    // A process is listening, but sends nothing. The system completes connections even without `accept`.
    let listener = TcpListener::bind(free_address()?)?;
    let address = listener.local_addr()?;
    let (result, _) = fetch_in_vain("rank 0 accepts the connection but sends nothing", address)?;
    let Err(error) = result else { bail!("rank 0 sent no id, but fetch returned one; expected an error") };
    let text = format!("{error:#}");
    ensure!(
        text.contains(&address.to_string()),
        "the error from fetch must contain the address {address}; got: {text}"
    );
    Ok(())
}

/// Opens connections, which are never accepted, until the queue is full. Further attempts then get no answer, as if the
/// machine were down.
fn crowd(listener: &TcpListener) -> anyhow::Result<Vec<TcpStream>> {
    let address = listener.local_addr()?;
    let mut waiting = Vec::new();
    loop {
        match TcpStream::connect_timeout(&address, SHORT) {
            Ok(stream) => waiting.push(stream),
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(waiting),
            Err(error) => {
                return Err(error).context("this machine still accepts connections, but can't open any more");
            }
        }
    }
}

fn fetch_gives_up_on_a_silent_machine() -> anyhow::Result<()> {
    let listener = TcpListener::bind(free_address()?)?;
    let address = listener.local_addr()?;
    let _crowd = crowd(&listener)?;
    let (result, _) = fetch_in_vain("a connection is neither accepted nor refused", address)?;
    let Err(error) = result else {
        bail!("nothing answers at {address}, but fetch returned an id; expected an error")
    };
    let text = format!("{error:#}");
    ensure!(
        text.contains(&address.to_string()),
        "the error from fetch must contain the address {address}; got: {text}"
    );
    Ok(())
}

fn an_id_may_arrive_in_pieces() -> anyhow::Result<()> {
    let id = some_id();
    let bytes = to_bytes(&id);
    let got = fetch_pieces(&[&bytes[..60], &bytes[60..61], &bytes[61..]])?;
    check_id(
        "a rank whose id arrived in three pieces",
        &got.context("the id arrives in three pieces")?,
        &id,
        60,
    )
}

fn half_an_id_is_an_error() -> anyhow::Result<()> {
    for bytes in [0, 60, ID_BYTES - 1] {
        let sent = &to_bytes(&some_id())[..bytes];
        let call = format!("`fetch` when rank 0 sends {bytes} of {ID_BYTES} bytes and disconnects");
        let fetched = match without_panic(&call, || fetch_pieces(&[sent]))? {
            Ok(fetched) => fetched,
            Err(error) => bail!(
                "{call}: {error:#}\n  at the end of a connection, `read` returns 0 immediately, but `read_exact` \
                 returns an error"
            ),
        };
        if let Ok(id) = fetched {
            let got = to_bytes(&id);
            let cause = match got.starts_with(sent) && got[bytes..].iter().all(|&byte| byte == 0) {
                true => {
                    "\n  likely cause: that is what was sent, followed by zeros. At the end of a connection, `read` \
                     returns 0, but `read_exact` returns an error"
                }
                false => "",
            };
            bail!("rank 0 sent only {bytes} of {ID_BYTES} bytes, but fetch returned an id: {got:?}{cause}");
        }
    }
    Ok(())
}

/// Returns the result of [`hand_out`] for `world_size` ranks while `ask` connects to its address.
fn handed_out<T: Send + 'static>(
    world_size: usize,
    timeout: Duration,
    ask: impl FnOnce(SocketAddr) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<(anyhow::Result<()>, anyhow::Result<T>)> {
    let listener = TcpListener::bind(free_address()?)?;
    let address = listener.local_addr()?;
    let asking = thread::spawn(move || ask(address));
    let result = in_time("hand_out", move || hand_out(&listener, &some_id(), world_size, timeout))?;
    Ok((result, join_thread(asking)))
}

/// Asks for the id as rank `rank` would.
fn ask(address: SocketAddr, rank: u32) -> anyhow::Result<Id> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LONG))?;
    stream.write_all(&rank.to_be_bytes())?;
    let mut bytes = [0; ID_BYTES];
    stream
        .read_exact(&mut bytes)
        .with_context(|| format!("rank {rank} did not receive a complete id from hand_out"))?;
    Ok(from_bytes(bytes))
}

fn ranks_that_never_connect_are_named() -> anyhow::Result<()> {
    let (result, asked) = without_panic("`hand_out` when ranks 2 and 4 never ask", || {
        handed_out(5, SHORT, |address| {
            let ids = [ask(address, 3)?, ask(address, 1)?];
            ids.iter().try_for_each(|id| check_id("a rank", id, &some_id(), ID_BYTES))
        })
    })??;
    let Err(error) = result else {
        bail!("ranks 2 and 4 never asked, but hand_out returned Ok; expected an error")
    };
    asked.context("hand_out did not send the id to ranks 1 and 3, which asked for it")?;
    let text = format!("{error:#}");
    let numbers: Vec<usize> =
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
    ensure!(
        [2, 4].iter().all(|rank| numbers.contains(rank)) && ![1, 3].iter().any(|rank| numbers.contains(rank)),
        "ranks 1 and 3 asked, but 2 and 4 never did: the error from hand_out must name only 2 and 4; got: {text}"
    );
    Ok(())
}

fn the_timeout_is_for_all_together() -> anyhow::Result<()> {
    let timeout = 2 * SHORT;
    // The timeout has already started when rank 1 is answered. So rank 3 is too late, even on a slow machine.
    let (result, _) = without_panic("`hand_out` when rank 3 asks after the timeout", || {
        handed_out(4, timeout, move |address| {
            let _ = ask(address, 1);
            for rank in [2, 3] {
                thread::sleep(timeout * 7 / 10);
                let _ = ask(address, rank);
            }
            Ok(())
        })
    })??;
    ensure!(
        result.is_err(),
        "rank 3 asked more than {timeout:?} after the start, which is the timeout for all ranks together, but hand_out \
         returned Ok; expected an error"
    );
    Ok(())
}

fn a_silent_connection_is_not_a_rank() -> anyhow::Result<()> {
    let (result, asked) = handed_out(3, LONG, |address| {
        drop(TcpStream::connect(address)?);
        let ids = [ask(address, 2)?, ask(address, 1)?];
        ids.iter().try_for_each(|id| check_id("a rank", id, &some_id(), ID_BYTES))
    })?;
    result.context(
        "a process connected and left without sending anything, and hand_out returned an error; it must keep waiting \
         for the ranks",
    )?;
    asked
}

fn a_rank_comes_once() -> anyhow::Result<()> {
    let (result, asked) = without_panic("`hand_out` when rank 1 asks twice", || {
        handed_out(3, LONG, |address| {
            ask(address, 1)?;
            // If rank 1's second connection is counted as the last rank, rank 2 gets no answer.
            Ok([ask(address, 1).is_ok(), ask(address, 2).is_ok()])
        })
    })??;
    let Err(error) = result else {
        let cause = match asked {
            Ok([true, false]) => {
                "\n  likely cause: rank 1 got the id twice, and rank 2 never got it: connections are counted instead \
                 of ranks"
            }
            _ => "",
        };
        bail!("rank 1 asked twice, but hand_out returned Ok; expected an error{cause}")
    };
    let text = format!("{error:#}");
    ensure!(
        text.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == "1"),
        "rank 1 asked twice: the error from hand_out must name it; got: {text}"
    );
    Ok(())
}

/// Returns the result of `exchange` on rank 0 of a world of two, while `ask` connects to its address.
fn exchanged<T: Send + 'static>(
    address: SocketAddr,
    timeout: Duration,
    ask: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<(anyhow::Result<Id>, anyhow::Result<T>)> {
    let asking = thread::spawn(ask);
    let result = in_time("exchange", move || exchange(0, 2, address, timeout))?;
    Ok((result, join_thread(asking)))
}

/// Connects as soon as a process is listening.
fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let deadline = Instant::now() + LONG;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error).with_context(|| format!("rank 0 is not listening at {address}")),
        }
    }
}

fn rank_0_listens_at_the_address_alone() -> anyhow::Result<()> {
    // On Linux, all addresses that start with 127 are local. Other systems may have only one.
    let Ok(free) = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)) else { return Ok(()) };
    let address = free.local_addr()?;
    drop(free);
    let other = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
    if TcpStream::connect(other).is_ok() {
        // Another program is using this port.
        return Ok(());
    }
    let (result, listens_at_other) = exchanged(address, LONG, move || {
        drop(connect(address)?);
        let listens_at_other = TcpStream::connect(other).is_ok();
        ask(address, 1)?;
        Ok(listens_at_other)
    })?;
    let listens_at_other =
        listens_at_other.with_context(|| format!("`exchange` on rank 0 with {address}"))?;
    result.with_context(|| format!("`exchange` on rank 0 with {address} returned an error"))?;
    ensure!(
        !listens_at_other,
        "`exchange` on rank 0 got the address {address}, but also listens at {other}; expected only {address}: it must \
         not be reachable from other networks"
    );
    Ok(())
}

fn rank_0_waits_for_all_ranks() -> anyhow::Result<()> {
    let address = free_address()?;
    let result = in_time("exchange", move || exchange(0, 2, address, SHORT))?;
    let Err(error) = result else {
        bail!(
            "`exchange` on rank 0 of 2 returned Ok, although rank 1 has not asked for the id; expected an error after \
             the timeout of {} ms",
            SHORT.as_millis()
        )
    };
    let text = format!("{error:#}");
    ensure!(
        text.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == "1"),
        "rank 1 never asked for the id: the error from `exchange` on rank 0 must name it; got: {text}"
    );
    Ok(())
}

fn an_address_in_use_is_an_error() -> anyhow::Result<()> {
    let occupied = TcpListener::bind(free_address()?)?;
    let address = occupied.local_addr()?;
    let result = without_panic(
        &format!("`exchange` on rank 0 when another program is listening at {address}"),
        || in_time("exchange", move || exchange(0, 2, address, SHORT)),
    )??;
    let Err(error) = result else {
        bail!(
            "another program is listening at {address}, but `exchange` on rank 0 returned Ok; expected an error"
        )
    };
    let text = format!("{error:#}");
    ensure!(
        text.contains(&address.to_string()),
        "another program is listening at {address}: the error from `exchange` on rank 0 must contain this address; \
         got: {text}"
    );
    Ok(())
}

/// Joins as the rank that the launcher assigned, and returns the answers that it receives.
fn join() -> anyhow::Result<String> {
    let [rank, local_rank, world_size] = own_numbers()?;
    let id = exchange(rank, world_size, root_address()?, STARTING)?;
    let stream = lab::streams(world_size)?.swap_remove(local_rank);
    stream.context().bind_to_thread()?;
    what_it_hears(&Comm::from_rank(stream, rank, world_size, id).readable()?)
}

fn processes_become_a_group() -> anyhow::Result<()> {
    let world_size = lab::world_sizes().into_iter().filter(|&size| size <= 3).max().unwrap_or(2);
    for launcher in LAUNCHERS {
        let root = root_variables(free_address()?);
        let variables: Vec<_> = (0..world_size)
            .map(|rank| [launcher.sets([rank, rank, world_size]), root.clone()].concat())
            .collect();
        let said = processes::run(&all_variables(), &variables)?;
        check_heard(&format!("started by {}", launcher.name), world_size, &said)?;
    }
    Ok(())
}

fn mpirun_makes_a_group() -> anyhow::Result<()> {
    let mut command = mpirun(2);
    command.envs(root_variables(free_address()?));
    let without: Vec<&str> = LAUNCHERS.iter().flat_map(|launcher| launcher.variables).collect();
    check_heard("started by mpirun", 2, &processes::run_by(command, &without)?)
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_of_all_threads_fails("exchange", || {
        let address = free_address()?;
        Ok(move || exchange(0, 1, address, LONG).map(drop))
    })
}

fn a_rank_of_another_world_is_named() -> anyhow::Result<()> {
    for stranger in [3, 0, 70_000] {
        let (result, _) =
            without_panic(&format!("`hand_out` for 3 ranks when rank {stranger} asks"), || {
                handed_out(3, LONG, move |address| Ok(ask(address, stranger).is_ok()))
            })??;
        let Err(error) = result else {
            bail!(
                "rank {stranger} asked for the id for a world of 3 ranks, but hand_out returned Ok; expected an error"
            )
        };
        let text = format!("{error:#}");
        ensure!(
            text.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == stranger.to_string()),
            "rank {stranger} asked for the id for a world of 3 ranks: the error from hand_out must name it; got: {text}"
        );
    }
    Ok(())
}
