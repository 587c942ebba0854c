//! Accepts connections, each with time limits, until the server is stopped.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{sleep, timeout};

use super::connections::{Connections, Responding};
use super::limits::{HEADER_TIME, LAST_WRITES, MAX_CONNECTIONS, WriteLimit};
use super::routes;
use super::service::Shared;
use super::unsent::Reserved;

/// The maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The number of bytes that a connection buffers: those of a piece of a response, or of the headers of a request.
const BUFFER: usize = 1 << 16;

/// How long to wait when the system has no more sockets.
const NO_SOCKETS: Duration = Duration::from_millis(50);

/// Listens; must be called within a runtime.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    #[cfg(unix)] // on Windows it would let other processes listen on the port
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until the service is stopped, no request is in flight, and the last responses are sent.
pub(super) async fn run(listener: TcpListener, service: Shared) {
    let router = TowerToHyperService::new(routes::router(service.clone()));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(BUFFER);
    let connections = Connections::new(MAX_CONNECTIONS);
    let graceful = GracefulShutdown::new();
    let mut end = std::pin::pin!(service.finished());
    loop {
        let (accepted, connection) = tokio::select! {
            () = &mut end => break,
            accepted = async { (listener.accept().await, connections.open().await) } => accepted,
        };
        let Ok((stream, _)) = accepted else {
            sleep(NO_SOCKETS).await;
            continue;
        };
        stream.set_nodelay(true).ok(); // only affects speed
        let stream = TokioIo::new(WriteLimit::new(stream, connection.clone()));
        let (router, of_requests) = (router.clone(), connection.clone());
        let respond = service_fn(move |mut request: Request<Incoming>| {
            of_requests.work();
            request.extensions_mut().insert(of_requests.clone());
            let (response, connection) = (router.call(request), of_requests.clone());
            async {
                let mut response = response.await?;
                let (reserved, responding) = (response.extensions_mut().remove(), Responding(connection));
                let pieces = |body| Pieces { body, rest: Bytes::new(), _reserved: reserved, _responding: responding };
                Ok::<_, Infallible>(response.map(pieces))
            }
        });
        let served = graceful.watch(http.serve_connection(stream, respond));
        tokio::spawn(async move {
            tokio::select! {
                _ = served => {} // its error is that the client left
                () = connection.closed() => {}
            }
        });
    }
    connections.close_waiting(MAX_CONNECTIONS);
    timeout(LAST_WRITES, graceful.shutdown()).await.ok(); // slower clients do not read
}

/// The body of a response, in pieces of which a connection buffers one at a time.
struct Pieces {
    body: Body,
    rest: Bytes,
    _reserved: Option<Arc<Reserved>>,
    _responding: Responding,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let n = self.rest.len().min(BUFFER);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(n)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let n_left = self.body.size_hint().exact().map(|n| n + self.rest.len() as u64);
        n_left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
