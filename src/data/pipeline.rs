//! Work on a text on all cores, with its results in the order of the text.

use rayon::prelude::*;

use super::DataError;

/// How many pieces are worked on at once, for each thread: some take longer than others.
const PIECES_PER_THREAD: usize = 2;

/// Hands every piece that `next` reads to `work`, several at once, and what comes of them to
/// `take`, in the order of the pieces. While some are worked on, the following ones are read; no
/// more than these are in memory.
///
/// # Errors
/// The first that one of the three returns, in the order of the pieces.
pub(super) fn in_order<I: Send, O: Send>(
    mut next: impl FnMut() -> Result<Option<I>, DataError> + Send,
    work: impl Fn(I) -> Result<O, DataError> + Sync,
    mut take: impl FnMut(O) -> Result<(), DataError> + Send,
) -> Result<(), DataError> {
    let n_pieces = PIECES_PER_THREAD * rayon::current_num_threads();
    let mut read = || {
        let mut pieces = Vec::with_capacity(n_pieces);
        while pieces.len() < n_pieces
            && let Some(piece) = next().transpose()
        {
            let is_error = piece.is_err();
            pieces.push(piece);
            if is_error {
                break;
            }
        }
        pieces
    };
    let mut pieces = read();
    while !pieces.is_empty() {
        let work_on_all = || {
            let results: Vec<Result<O, DataError>> =
                pieces.into_par_iter().map(|piece| work(piece?)).collect();
            results.into_iter().try_for_each(|result| take(result?))
        };
        let (done, following) = rayon::join(work_on_all, &mut read);
        done?;
        pieces = following;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str) -> DataError {
        DataError::Empty { path: name.into() }
    }

    #[test]
    fn results_come_in_order_on_any_number_of_threads() {
        for n_threads in [1, 2, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
            let mut numbers = 0..100_u64;
            let mut taken = Vec::new();
            let done = pool.build().unwrap().install(|| {
                in_order(
                    || Ok(numbers.next()),
                    |n| Ok((0..(n * 7919) % 1000).fold(n, |n, _| std::hint::black_box(n))),
                    |n| {
                        taken.push(n);
                        Ok(())
                    },
                )
            });
            done.unwrap();
            assert_eq!(taken, (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_ends_it() {
        let mut numbers = 0..100;
        let mut n_taken = 0;
        let done = in_order(
            || numbers.next().filter(|n| *n < 60).ok_or_else(|| error("read")).map(Some),
            |n| {
                if n >= 40 { Err(error(&n.to_string())) } else { Ok(n) }
            },
            |_| {
                n_taken += 1;
                Ok(())
            },
        );
        assert!(done.unwrap_err().to_string().contains("`40`"));
        assert_eq!(n_taken, 40);
        let done = in_order(|| Err(error("read")), Ok::<u8, _>, |_| Ok(()));
        assert!(done.unwrap_err().to_string().contains("`read`"));
    }
}
