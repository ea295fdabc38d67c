//! Connections to other processes: where each process listens, how it rejects strangers, and the threads at both ends
//! of a socket.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::Nccl;
use super::id::UniqueId;
use super::internal::announce;
use super::session::{ProcessNumber, ROOT, SessionId};
use super::wire::{Reader, Writer, structure};
use virtual_gpu::engine::given_up;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// The first bytes that each side of a connection sends.
const MAGIC: [u8; 8] = *b"vgpunccl";
/// The version of the protocol used after the greeting.
const VERSION: u32 = 1;
/// How long a connecting process may take to identify itself.
const GREETING: Duration = Duration::from_secs(5);
/// The maximum length of a message, in bytes.
const LONGEST: u64 = 1 << 40;
/// How long to wait before trying again to connect to an address that is not answering yet.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// An interface's name and one of its addresses.
pub type Interface = (String, IpAddr);

/// The first message from a connecting process.
pub(crate) struct Hello {
    id: [u8; 128],
    pub(crate) pid: u32,
}

structure! { Greeting { magic, version, code } }

/// The first bytes in either direction. The connecting process sends the code 0.
struct Greeting {
    magic: [u8; 8],
    version: u32,
    code: u32,
}

const GREETING_LEN: usize = 16;
const WELCOME: u32 = 0;
const UNKNOWN_ID: u32 = 1;
const OTHER_VERSION: u32 = 2;

/// A queue of messages to another process. A thread sends them in order.
pub(crate) struct Outbox(Option<Sender<Arc<[u8]>>>);

impl Outbox {
    pub(crate) fn send(&self, message: Arc<[u8]>) {
        // If the connection has ended, its reading thread takes care of that.
        let _ = self.0.as_ref().map(|queue| queue.send(message));
    }

    /// Closes the queue. The other side sees the connection end after it has received everything.
    pub(crate) fn close(&mut self) {
        self.0 = None;
    }
}

/// The addresses this process listens at, by requested address.
#[derive(Default)]
pub(crate) struct Listeners(HashMap<SocketAddr, SocketAddr>);

fn greeting(code: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.put(&Greeting { magic: MAGIC, version: VERSION, code });
    writer.finish()
}

fn read_greeting(stream: &mut TcpStream) -> std::io::Result<Option<Greeting>> {
    let mut bytes = [0; GREETING_LEN];
    stream.read_exact(&mut bytes)?;
    Ok(Reader::new(&bytes).get::<Greeting>().filter(|greeting| greeting.magic == MAGIC))
}

impl Nccl {
    /// Implements `ncclGetUniqueId`. `interfaces` lists the machine's interfaces, to be matched with
    /// `NCCL_SOCKET_IFNAME`.
    ///
    /// # Errors
    /// Returns `InvalidArgument` for a bad `NCCL_COMM_ID`, and `InvalidUsage` if no interface matches
    /// `NCCL_SOCKET_IFNAME`.
    pub fn unique_id(&'static self, interfaces: fn() -> Vec<Interface>) -> NcclResult<UniqueId> {
        if let Some(address) = std::env::var("NCCL_COMM_ID").ok().filter(|text| !text.is_empty()) {
            return Ok(UniqueId::of_address(parse_address(&address)?));
        }
        let ip = match std::env::var("NCCL_SOCKET_IFNAME").ok().filter(|text| !text.is_empty()) {
            None => Ipv4Addr::LOCALHOST.into(),
            Some(wanted) => choose(&interfaces(), &wanted).ok_or_else(|| {
                let message = format!("NCCL_SOCKET_IFNAME={wanted}: no socket interface found");
                Error::new(NcclStatus::InvalidUsage, message)
            })?,
        };
        // Without a network, the id still works for the threads in this process.
        let id = UniqueId::new(self.listen(SocketAddr::new(ip, 0)).ok());
        self.lock().nccl.own_ids.insert(id);
        Ok(id)
    }

    /// Listens at the address in an id from `NCCL_COMM_ID`, because this process has rank 0.
    pub(crate) fn listen_as_root(&'static self, id: UniqueId) -> NcclResult<()> {
        let Some(address) = id.address() else { return Ok(()) };
        // Add the id before another process can connect.
        self.lock().nccl.own_ids.insert(id);
        self.listen(address).map(drop).map_err(|error| {
            self.lock().nccl.own_ids.remove(&id);
            let message = format!("NCCL_COMM_ID={address}: rank 0 can't listen there: {error}");
            Error::new(NcclStatus::SystemError, message)
        })
    }

    /// Listens at `asked`, unless this process already does; port 0 means any port. Returns the address that other
    /// processes connect to.
    fn listen(&'static self, asked: SocketAddr) -> std::io::Result<SocketAddr> {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&address) = listeners.0.get(&asked) {
            return Ok(address);
        }
        let listener = TcpListener::bind(asked)?;
        let address = listener.local_addr()?;
        named("accepts", move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    // The process may, for example, be out of file descriptors. Existing connections continue.
                    std::thread::sleep(TRY_AGAIN);
                    continue;
                };
                // If the greeting fails, the connection is dropped, and the process at the other end notices.
                let _ = named("greets", move || drop(self.greet(stream)));
            }
        })?;
        listeners.0.insert(asked, address);
        Ok(address)
    }

    /// Accepts a connection if its greeting contains the id of a communicator that is being created here.
    fn greet(&'static self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(GREETING))?;
        stream.set_write_timeout(Some(GREETING))?;
        let Some(Greeting { version, .. }) = read_greeting(&mut stream)? else { return Ok(()) };
        if version != VERSION {
            return stream.write_all(&greeting(OTHER_VERSION));
        }
        let mut bytes = [0; 132];
        stream.read_exact(&mut bytes)?;
        let (id, pid) = bytes.split_at(128);
        let hello = Hello {
            id: id.try_into().unwrap_or([0; 128]),
            pid: u32::from_le_bytes(pid.try_into().unwrap_or([0; 4])),
        };
        let id = UniqueId::from_bytes(hello.id).ok().filter(|id| self.lock().nccl.own_ids.contains(id));
        let Some(id) = id else { return stream.write_all(&greeting(UNKNOWN_ID)) };
        stream.write_all(&greeting(WELCOME))?;
        let outbox = self.open(&stream)?;
        let accepted = self.lock().nccl.accept(id, hello.pid, outbox);
        let (session, process) =
            accepted.map_err(|error| std::io::Error::other(announce(&error).report.to_string()))?;
        self.read_all(stream, session, process);
        Ok(())
    }

    /// Connects to the root, which is the process that created the id. Returns the session.
    ///
    /// # Errors
    /// Returns `RemoteError` if the root does not listen or does not know the id, `SystemError` if the id has no
    /// address, and `InvalidUsage` if the root runs another version of the virtual GPU.
    pub(crate) fn connect(&'static self, id: UniqueId) -> NcclResult<SessionId> {
        let maker = id.maker();
        let root =
            if maker == 0 { "rank 0".to_owned() } else { format!("process {maker}, which made the id,") };
        let Some(address) = id.address() else {
            let message = format!("the id of process {maker} has no address: it could not listen");
            return Err(Error::new(NcclStatus::SystemError, message));
        };
        let mut stream = self.reach(id, address, &root)?;
        self.introduce(&mut stream, id, address, &root)?;
        let system = |error: std::io::Error| Error::new(NcclStatus::SystemError, error.to_string());
        let outbox = self.open(&stream).map_err(system)?;
        let session = self.lock().nccl.connected_to_root(id, maker, outbox);
        named("reads", move || self.read_all(stream, session, ROOT)).map_err(system)?;
        Ok(session)
    }

    /// Connects to a root's address. With `NCCL_COMM_ID`, this process may start before the root, so it retries.
    fn reach(&self, id: UniqueId, address: SocketAddr, root: &str) -> NcclResult<TcpStream> {
        let timeout = self.engine.config().bootstrap_timeout.duration;
        let since = Instant::now();
        loop {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => return Ok(stream),
                Err(_) if id.is_of_address() && since.elapsed() < timeout => {
                    if self.lock().nccl.own_ids.contains(&id) {
                        return Err(remote(String::new()));
                    }
                    std::thread::sleep(TRY_AGAIN);
                }
                Err(error) => {
                    let message = format!("{root} is not listening at {address} (anymore, or yet): {error}");
                    return Err(remote(message));
                }
            }
        }
    }

    /// Exchanges greetings with a root.
    fn introduce(
        &self,
        stream: &mut TcpStream,
        id: UniqueId,
        address: SocketAddr,
        root: &str,
    ) -> NcclResult<()> {
        let timeout = self.engine.config().bootstrap_timeout;
        let stranger = |error: Option<std::io::Error>| match error {
            Some(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                remote(format!("{address} does not answer {}", given_up(timeout)))
            }
            _ => remote(format!("the process at {address} does not use the virtual GPU: has {root} ended?")),
        };
        let mut hello = || -> std::io::Result<Option<Greeting>> {
            stream.set_read_timeout(Some(timeout.duration))?;
            stream.set_write_timeout(Some(timeout.duration))?;
            stream.write_all(&greeting(WELCOME))?;
            stream.write_all(id.bytes())?;
            stream.write_all(&std::process::id().to_le_bytes())?;
            read_greeting(stream)
        };
        let answer = hello().map_err(|error| stranger(Some(error)))?.ok_or_else(|| stranger(None))?;
        match (answer.code, answer.version) {
            (WELCOME, VERSION) => Ok(()),
            (UNKNOWN_ID, VERSION) => {
                Err(remote(format!("the process at {address} does not know this id: has {root} ended?")))
            }
            _ => {
                let message = format!(
                    "another version of the virtual GPU is listening at {address}: all ranks must use the same version"
                );
                Err(Error::new(NcclStatus::InvalidUsage, message))
            }
        }
    }

    /// Starts the thread that sends on a connection.
    fn open(&self, stream: &TcpStream) -> std::io::Result<Outbox> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        stream.set_nodelay(true)?;
        let mut stream = stream.try_clone()?;
        let (queue, messages) = channel::<Arc<[u8]>>();
        named("sends", move || {
            for message in messages {
                let len = (message.len() as u64).to_le_bytes();
                let sent = stream.write_all(&len).and_then(|()| stream.write_all(&message));
                if sent.is_err() {
                    break;
                }
            }
            // The other side reads to the end and then knows that nothing else will follow.
            let _ = stream.shutdown(Shutdown::Write);
        })?;
        Ok(Outbox(Some(queue)))
    }

    /// Handles a process's messages until its connection ends or it sends an invalid message.
    fn read_all(&'static self, mut stream: TcpStream, session: SessionId, process: ProcessNumber) {
        loop {
            let mut len = [0; 8];
            if stream.read_exact(&mut len).is_err() {
                break;
            }
            let len = u64::from_le_bytes(len);
            let mut message = Vec::new();
            // The buffer grows as bytes arrive, so a wrong length can't cause a large allocation.
            let read = (&mut stream).take(len.min(LONGEST)).read_to_end(&mut message);
            if read.is_err()
                || message.len() as u64 != len
                || self.receive(session, process, message).is_err()
            {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
        self.lost(session, process);
    }
}

fn remote(message: String) -> Error<NcclStatus> {
    Error::new(NcclStatus::RemoteError, message)
}

/// Starts one of the virtual GPU's threads.
fn named(what: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(format!("virtual GPU: {what}")).spawn(run).map(drop)
}

/// Parses `host:port`, `1.2.3.4:port`, or `[ipv6]:port`.
fn parse_address(text: &str) -> NcclResult<SocketAddr> {
    let found =
        text.to_socket_addrs().ok().and_then(|mut all| all.next()).filter(|address| address.port() != 0);
    found.ok_or_else(|| {
        let message =
            format!("NCCL_COMM_ID={text}: expected <ipv4>:<port>, [<ipv6>]:<port>, or <hostname>:<port>");
        Error::new(NcclStatus::InvalidArgument, message)
    })
}

/// Chooses the first interface that matches `NCCL_SOCKET_IFNAME`: a list of name prefixes, of full names after `=`, or
/// of exclusions after `^`. Chooses loopback only if it is requested by name or is the only interface.
fn choose(interfaces: &[Interface], wanted: &str) -> Option<IpAddr> {
    let (exclude, list) = wanted.strip_prefix('^').map_or((false, wanted), |list| (true, list));
    let (exact, list) = list.strip_prefix('=').map_or((false, list), |list| (true, list));
    let names: Vec<&str> = list.split(',').filter(|name| !name.is_empty()).collect();
    let is_listed =
        |own: &str| names.iter().any(|name| if exact { own == *name } else { own.starts_with(name) });
    let mut fitting: Vec<&Interface> =
        interfaces.iter().filter(|(name, _)| is_listed(name) != exclude).collect();
    fitting.sort_by_key(|(_, address)| (exclude && address.is_loopback(), address.is_ipv6()));
    fitting.first().map(|(_, address)| *address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_chosen_as_nccl_does() {
        let interfaces =
            [("lo", "127.0.0.1"), ("eth0", "10.0.0.2"), ("eth10", "10.0.1.2"), ("ib0", "fd00::2")];
        let interfaces = interfaces.map(|(name, address)| (name.to_owned(), address.parse().unwrap()));
        let chosen = |wanted| choose(&interfaces, wanted).map(|address| address.to_string());
        assert_eq!(chosen("eth").as_deref(), Some("10.0.0.2"));
        assert_eq!(chosen("=eth10").as_deref(), Some("10.0.1.2"));
        assert_eq!(chosen("^eth").as_deref(), Some("fd00::2"));
        assert_eq!(chosen("^=eth0").as_deref(), Some("10.0.1.2"));
        assert_eq!(chosen("ib,lo").as_deref(), Some("127.0.0.1"));
        assert_eq!(chosen("wlan"), None);
        assert_eq!(chosen("=eth"), None);
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        assert_eq!(parse_address("127.0.0.1:4000").unwrap(), "127.0.0.1:4000".parse().unwrap());
        assert_eq!(parse_address("[::1]:4000").unwrap(), "[::1]:4000".parse().unwrap());
        for bad in ["4000", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "::", "[::1]"] {
            let error = parse_address(bad).unwrap_err();
            assert_eq!(error.status, NcclStatus::InvalidArgument);
            assert!(error.message.contains(bad));
        }
    }
}
