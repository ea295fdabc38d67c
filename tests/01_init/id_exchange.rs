//! Checks of `init/id_exchange`.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cudarc::nccl::{Comm, Id};
use lab::{Check, Readable, each_rank, processes};

use crate::exercise::launch::{
    LAUNCHERS, all_variables, check_heard, free_address, mpirun, own_numbers, root_address, root_variables,
    what_it_hears,
};
use crate::init::id_exchange::{ID_BYTES, exchange, fetch, from_bytes, hand_out, to_bytes};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("id_exchange::all_ranks_have_one_id", all_ranks_have_one_id),
        Check::new("id_exchange::rank_0_may_come_late", rank_0_may_come_late),
        Check::new("id_exchange::waiting_ends_at_the_timeout", waiting_ends_at_the_timeout),
        Check::new("id_exchange::a_silent_machine_is_given_up", a_silent_machine_is_given_up),
        Check::new("id_exchange::an_id_may_come_in_pieces", an_id_may_come_in_pieces),
        Check::new("id_exchange::half_an_id_is_an_error", half_an_id_is_an_error),
        Check::new("id_exchange::ranks_that_never_come_are_named", ranks_that_never_come_are_named),
        Check::new("id_exchange::the_timeout_is_for_all_together", the_timeout_is_for_all_together),
        Check::new("id_exchange::who_says_nothing_is_no_rank", who_says_nothing_is_no_rank),
        Check::new("id_exchange::a_rank_comes_once", a_rank_comes_once),
        Check::new("id_exchange::processes_become_a_group", processes_become_a_group)
            .process(join)
            .min_ranks(2),
        Check::new("id_exchange::mpirun_makes_a_group", mpirun_makes_a_group)
            .process(join)
            .min_ranks(2)
            .needs_program("mpirun"),
    ]
}

/// For what should come at once.
const LONG: Duration = Duration::from_secs(6);
/// For processes, which have to start first.
const STARTING: Duration = Duration::from_secs(30);
/// For what should never come.
const SHORT: Duration = Duration::from_millis(300);

/// Runs something that may wait for ever by mistake, in a thread of its own.
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
            "{what} still waits after {} s, much longer than its timeout: what waits needs an end (set_read_timeout, a deadline)",
            2 * LONG.as_secs()
        ),
        // It panicked, which the harness tells.
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => bail!("{what} said nothing"),
        },
    }
}

/// An id without a communicator, no two bytes of which are alike, and none 0.
fn some_id() -> Id {
    from_bytes(std::array::from_fn(|at| at as u8 + 1))
}

fn check_id(who: &str, got: &Id, expected: &Id) -> anyhow::Result<()> {
    let (got, expected) = (to_bytes(got), to_bytes(expected));
    let same = got.iter().zip(&expected).take_while(|(got, expected)| got == expected).count();
    if same == ID_BYTES {
        return Ok(());
    }
    let cause = match got[same..].iter().all(|&byte| byte == 0) {
        true if same > 0 => "a `read` brings what is there, and no more: `read_exact` waits for all of it",
        true => "nothing was read",
        false => "another id: rank 0 makes the only one",
    };
    bail!(
        "{who} has another id than it should: the first {same} of {ID_BYTES} bytes are right\n  likely cause: {cause}"
    )
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
                "rank {rank} of {world_size} has another id than rank 0\n  likely cause: it made one itself, where rank 0's was to be fetched"
            );
        }
    }
    Ok(())
}

/// Fetches as rank 3 would, and says how long that took.
fn fetched(address: SocketAddr, timeout: Duration) -> anyhow::Result<(anyhow::Result<Id>, Duration)> {
    in_time("fetch", move || {
        let start = Instant::now();
        let result = fetch(address, 3, timeout);
        Ok((result, start.elapsed()))
    })?
}

fn rank_0_may_come_late() -> anyhow::Result<()> {
    let address = free_address()?;
    let asking = thread::spawn(move || fetched(address, LONG));
    thread::sleep(SHORT);
    ensure!(
        !asking.is_finished(),
        "fetch gave up before rank 0 listened: {}\n  likely cause: it connects once; processes start in any order, so it must try again",
        match join_thread(asking)?.0 {
            Ok(_) => "it returned an id that nobody sent".to_owned(),
            Err(error) => format!("{error:#}"),
        }
    );
    let listener = TcpListener::bind(address)?;
    let id = some_id();
    let (peer, rank) = accept(&listener)?;
    ensure!(
        rank == 3,
        "rank 3 said that it is rank {rank}: its number goes in four bytes, the highest first"
    );
    send(peer, &[&to_bytes(&id)])?;
    let (got, _) = join_thread(asking)?;
    check_id("rank 3", &got.context("rank 0 came late, and fetch failed")?, &id)
}

fn join_thread<T>(thread: thread::JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Rank 0's side of one connection, by hand: who is it?
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
    peer.read_exact(&mut rank).context("fetch never said its rank, in four bytes")?;
    Ok((peer, u32::from_be_bytes(rank)))
}

/// Writes pieces, with a pause between them, and closes the connection.
fn send(mut peer: TcpStream, pieces: &[&[u8]]) -> anyhow::Result<()> {
    peer.set_nodelay(true)?;
    for (at, piece) in pieces.iter().enumerate() {
        if at > 0 {
            thread::sleep(SHORT);
        }
        // Who has read enough may have gone.
        let _ = peer.write_all(piece);
    }
    Ok(())
}

/// Fetches from a rank 0 that sends these pieces.
fn fetch_pieces(pieces: &[&[u8]]) -> anyhow::Result<anyhow::Result<Id>> {
    let listener = TcpListener::bind(free_address()?)?;
    let address = listener.local_addr()?;
    let asking = thread::spawn(move || fetched(address, LONG));
    // Where nobody came, fetch says why.
    let sent = accept(&listener).and_then(|(peer, _)| send(peer, pieces));
    let (got, _) = join_thread(asking)?;
    Ok(got.and_then(|id| sent.map(|()| id)))
}

fn waiting_ends_at_the_timeout() -> anyhow::Result<()> {
    let address = free_address()?;
    let (result, took) = fetched(address, SHORT)?;
    let Err(error) = result else { bail!("nobody listens at {address}, and fetch returned an id") };
    let text = format!("{error:#}");
    ensure!(text.contains(&address.to_string()), "the error must say the address {address}; it says: {text}");
    ensure!(
        took >= SHORT,
        "nobody listens yet, and fetch gave up after {took:?}, where it has {SHORT:?}: {text}\n  likely cause: it connects once"
    );
    // Somebody listens, and says nothing: connections are made without `accept`.
    let listener = TcpListener::bind(free_address()?)?;
    let address = listener.local_addr()?;
    let (result, _) = fetched(address, SHORT)?;
    let Err(error) = result else { bail!("nobody sent an id, and fetch returned one") };
    let text = format!("{error:#}");
    ensure!(text.contains(&address.to_string()), "the error must say the address {address}; it says: {text}");
    Ok(())
}

/// Makes connections that nobody accepts, until there is no room for more: who comes then hears nothing, as from a machine that
/// is down.
fn crowd(listener: &TcpListener) -> anyhow::Result<Vec<TcpStream>> {
    let address = listener.local_addr()?;
    let mut waiting = Vec::new();
    loop {
        match TcpStream::connect_timeout(&address, SHORT) {
            Ok(stream) => waiting.push(stream),
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(waiting),
            Err(error) => {
                return Err(error).context("this machine still takes connections, and can't make more");
            }
        }
    }
}

fn a_silent_machine_is_given_up() -> anyhow::Result<()> {
    let listener = TcpListener::bind(free_address()?)?;
    let address = listener.local_addr()?;
    let _crowd = crowd(&listener)?;
    let (result, _) = fetched(address, SHORT).context(
        "nothing answers at rank 0's address, neither yes nor no: `connect` then waits for minutes, `connect_timeout` \
         as long as you say",
    )?;
    let Err(error) = result else { bail!("nothing answers at {address}, and fetch returned an id") };
    let text = format!("{error:#}");
    ensure!(text.contains(&address.to_string()), "the error must say the address {address}; it says: {text}");
    Ok(())
}

fn an_id_may_come_in_pieces() -> anyhow::Result<()> {
    let id = some_id();
    let bytes = to_bytes(&id);
    let got = fetch_pieces(&[&bytes[..60], &bytes[60..61], &bytes[61..]])?;
    check_id("a rank whose id came in three pieces", &got.context("an id came in three pieces")?, &id)
}

fn half_an_id_is_an_error() -> anyhow::Result<()> {
    for bytes in [0, 60, ID_BYTES - 1] {
        ensure!(
            fetch_pieces(&[&to_bytes(&some_id())[..bytes]])?.is_err(),
            "rank 0 sent {bytes} of {ID_BYTES} bytes and left, and fetch returned an id\n  \
             likely cause: a `read` brings what is there, and at the end 0 bytes: `read_exact` makes an error of it"
        );
    }
    Ok(())
}

/// What [`hand_out`] answers in a world of so many ranks while `ask` asks at its address.
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

/// Asks as the rank does, by hand.
fn ask(address: SocketAddr, rank: u32) -> anyhow::Result<Id> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LONG))?;
    stream.write_all(&rank.to_be_bytes())?;
    let mut bytes = [0; ID_BYTES];
    stream.read_exact(&mut bytes).with_context(|| format!("rank {rank} got no whole id"))?;
    Ok(from_bytes(bytes))
}

fn ranks_that_never_come_are_named() -> anyhow::Result<()> {
    let (result, asked) = handed_out(5, SHORT, |address| {
        let ids = [ask(address, 3)?, ask(address, 1)?];
        ids.iter().try_for_each(|id| check_id("a rank", id, &some_id()))
    })?;
    let Err(error) = result else { bail!("ranks 2 and 4 never asked, and hand_out returned Ok") };
    asked.context("two of four ranks asked for the id")?;
    let text = format!("{error:#}");
    let numbers: Vec<usize> =
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
    ensure!(
        [2, 4].iter().all(|rank| numbers.contains(rank)) && ![1, 3].iter().any(|rank| numbers.contains(rank)),
        "ranks 1 and 3 asked, 2 and 4 never did: the error must name 2 and 4 alone; it says: {text}"
    );
    Ok(())
}

fn the_timeout_is_for_all_together() -> anyhow::Result<()> {
    let timeout = 2 * SHORT;
    // Rank 1 is answered when the time runs already. So rank 3 is too late, however slow this machine is.
    let (result, _) = handed_out(4, timeout, move |address| {
        for rank in 1..4 {
            let _ = ask(address, rank);
            thread::sleep(timeout * 7 / 10);
        }
        Ok(())
    })?;
    ensure!(
        result.is_err(),
        "rank 3 asked when more than {timeout:?} were over, which hand_out has for all of them together, and it \
         returned Ok\n  likely cause: the deadline is set anew for each rank"
    );
    Ok(())
}

fn who_says_nothing_is_no_rank() -> anyhow::Result<()> {
    let (result, asked) = handed_out(3, LONG, |address| {
        drop(TcpStream::connect(address)?);
        let ids = [ask(address, 2)?, ask(address, 1)?];
        ids.iter().try_for_each(|id| check_id("a rank", id, &some_id()))
    })?;
    result.context("somebody connected, said nothing and left, and hand_out failed")?;
    asked
}

fn a_rank_comes_once() -> anyhow::Result<()> {
    let (result, _) = handed_out(3, LONG, |address| {
        ask(address, 1)?;
        let again = ask(address, 1).is_ok();
        // Where that was taken for the last rank, nobody listens any more.
        let _ = ask(address, 2);
        Ok(again)
    })?;
    let Err(error) = result else {
        bail!(
            "rank 1 asked twice, and hand_out returned Ok\n  likely cause: connections are counted, and not ranks"
        )
    };
    let text = format!("{error:#}");
    ensure!(text.contains("rank 1 "), "rank 1 asked twice: the error must name it; it says: {text}");
    Ok(())
}

/// Takes part as the rank that the launcher says, and says what it hears in the group.
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
