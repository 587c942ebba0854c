//! A long series in bounded memory.

use std::ops::Deref;

/// The items of a short series; of a long one, an item for each group of two, four, and so on.
#[derive(Clone, Debug)]
pub struct Thinned<T> {
    items: Vec<T>,
    /// The items of the next group.
    gathered: Vec<T>,
    /// The number of items in a group.
    group: usize,
    most: usize,
    merge: fn(&[T]) -> T,
}

impl<T: Clone> Thinned<T> {
    /// An empty series of fewer than `most` items, an even number. `merge` makes one item of a group.
    pub fn new(most: usize, merge: fn(&[T]) -> T) -> Self {
        Self { items: Vec::new(), gathered: Vec::new(), group: 1, most, merge }
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) {
        self.gathered.push(item);
        if self.gathered.len() == self.group {
            self.items.push((self.merge)(&self.gathered));
            self.gathered.clear();
        }
        if self.items.len() == self.most {
            self.items = self.items.chunks(2).map(self.merge).collect();
            self.group *= 2;
        }
    }

    pub(super) fn group(&self) -> usize {
        self.group
    }
}

impl<T> Deref for Thinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_series_keep_evenly_spaced_groups() {
        let mut first = Thinned::new(8, |group: &[f64]| group[0]);
        let mut mean = Thinned::new(8, |group: &[f64]| group.iter().sum::<f64>() / group.len() as f64);
        for i in 0..7 {
            first.push(f64::from(i));
        }
        assert_eq!(*first, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        for i in 7..16 {
            first.push(f64::from(i));
        }
        (0..16).for_each(|i| mean.push(f64::from(i)));
        assert_eq!((first.group(), &*first), (4, &[0.0, 4.0, 8.0, 12.0][..]));
        assert_eq!(*mean, [1.5, 5.5, 9.5, 13.5]);
    }
}
